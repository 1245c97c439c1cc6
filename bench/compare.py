#!/usr/bin/env python3
"""compare.py - heddle's speed against llama.cpp's: same file, same machine, same minutes, alternating.

usage: compare.py MODEL.gguf... [--rounds 7] [--threads 2] [-p 512] [-n 64] [-b 1,8] [--depth 0] [--flash on,off]
                  [--cpu] [--peer-only] [--json OUT]        (setting up the peer: tests/oracle/peer.py)
                  [--bin "NAME=DIR;FLAGS;FLAGS"]...         (llama-bench and llama-batched-bench of DIR instead)

Each round starts a fresh process of each engine in turn: `heddle bench MODEL -p P -n N -b ROWS --threads T --json`, then
llama.cpp through llama-cpp-python's low-level calls with each --flash setting.  The order turns round every round.
What the peer's timers include: one llama_decode call of P tokens into an empty cache, logits of the last token only
(prefill); N calls of one token for each of ROWS sequences of their own, logits of every token, tokens fixed beforehand
so that no sampling is timed (decode).  Each follows an untimed warm-up of the same shape.  Loading is not included.
--bin takes the peer's own programs: llama-bench for the prefill and one row, llama-batched-bench for more rows (each with a
prompt of one token) and at a depth, with FLAGS added to the one and the other; for any fork that has kept them.
--cpu compares tokens per second of CPU time of each whole process instead, with one thread: what an idle machine would show,
as far as a neighbour takes turns and not memory bandwidth; for machines that are never quiet.
Ratios are heddle / peer within a round, against the peer's better setting of that round: min, median, max.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "oracle"))
import peer as P  # noqa: E402


def bench_peer(model, a):
    """One run in this process; prints the shape of `heddle bench --json` (the parts that are compared)."""
    rows = [int(x) for x in a.b.split(",") if x != "0"]
    now = time.process_time if a.cpu else time.perf_counter
    t0 = time.perf_counter()
    peer = P.Peer(model, n_ctx=max(a.p, a.depth + a.n + 8) + 8, threads=a.threads, flash=a.flash == "on", n_seqs=max(rows or [1]),
                  n_batch=max(512, a.p))
    load = time.perf_counter() - t0
    lc = peer.lc
    token = lambda i: 100 + i * 7919 % (min(peer.n_vocab, 30000) - 200)

    def prefill(seq, n, first=0):
        peer.decode([token(i) for i in range(n)], range(first, first + n), [seq] * n, [0] * (n - 1) + [1])
        lc.llama_get_logits_ith(peer.ctx, n - 1)

    def timed_prefill():
        peer.clear()
        t = now()
        prefill(0, a.p)
        return now() - t

    pf = []
    if a.p:
        timed_prefill()
        pf = [{"tokens": a.p, "tok_s": a.p / timed_prefill()}]
    out = {"prefill": pf, "decode": [], "load_ms": 1000 * load,
           "threads": a.threads, "isa": peer.system_info(), "version": peer.version()}
    for r in rows:
        peer.clear()
        for s in range(r):
            for at in range(0, a.depth, 512):
                prefill(s, min(512, a.depth - at), at)
        warm = 4
        for i in range(warm + a.n):
            if i == warm:
                t = now()
            peer.decode([token(i + s) for s in range(r)], [a.depth + i] * r, list(range(r)), [1] * r)
            lc.llama_get_logits_ith(peer.ctx, r - 1)
        out["decode"].append({"rows": r, "tok_s": r * a.n / (now() - t), "depth": a.depth})
    print(json.dumps(out))


def bench_programs(spec, model, a):
    """One run of the programs of --bin, in the shape of `heddle bench --json`."""
    model = os.path.abspath(model)
    place, *flags = (spec.split("=", 1)[1] + ";;").split(";")
    flags = dict(zip(("llama-bench", "llama-batched-bench"), flags))
    out = {"prefill": [], "decode": [], "isa": "", "version": spec}

    def call(program, *more):
        cmd = [os.path.join(place, program), "-m", model, "-t", str(a.threads), *flags[program].split(), *more]
        p = subprocess.run(cmd, capture_output=True, timeout=1800, cwd=tempfile.gettempdir())  # they leave logs
        if p.returncode:
            sys.exit(f"{program}: exit {p.returncode}\n{p.stderr.decode(errors='replace')[-2000:]}")
        return p.stdout.decode(), p.stderr.decode()

    rows = a.b.split(",")
    one = "1" in rows and not a.depth  # forks ask for a depth in different ways, but for the batched program
    if a.p or one:
        for x in json.loads(call("llama-bench", "-p", str(a.p), "-n", str(a.n if one else 0), "-r", "1", "-o", "json")[0]):
            what = "decode" if x["n_gen"] else "prefill"
            out[what].append({"tokens": x["n_prompt"], "rows": 1, "tok_s": x["avg_ts"]})
    for rows in (r for r in rows if r != "0" and not (r == "1" and one)):
        ctx = str(int(rows) * (a.depth + a.n + 8))
        said = call("llama-batched-bench", "-c", ctx, "-npp", str(a.depth or 1), "-ntg", str(a.n), "-npl", rows)
        for line in "".join(said).splitlines():  # forks print the table here or there
            cells = [c.strip() for c in line.split("|")]
            if len(cells) > 8 and cells[3] == rows:
                out["decode"].append({"rows": int(rows), "tok_s": float(cells[8])})
    return out


def flat(r, cpu):
    """{"prefill 512": tok/s, "decode 1": tok/s, ...}"""
    speed = lambda x: x["cpu_tok_s"] if cpu and "cpu_tok_s" in x else x["tok_s"]
    d = {f"prefill {x['tokens']}": speed(x) for x in r["prefill"]}
    d.update({f"decode {x['rows']}": speed(x) for x in r["decode"]})
    return d


def spread(xs, form="{:.1f}"):
    return " ".join(form.format(f(xs)) for f in (min, statistics.median, max))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", nargs="+")
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("-p", type=int, default=512)
    ap.add_argument("-n", type=int, default=64)
    ap.add_argument("-b", default="1,8")
    ap.add_argument("--depth", type=int, default=0)
    ap.add_argument("--flash", default="on,off")
    ap.add_argument("--cpu", action="store_true")
    ap.add_argument("--peer-only", action="store_true")
    ap.add_argument("--json")
    ap.add_argument("--bin", action="append", default=[], metavar="NAME=DIR;FLAGS;FLAGS")
    ap.add_argument("--bench-peer", action="store_true", help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.cpu:
        a.threads = 1
    if a.bench_peer:
        return bench_peer(a.model[0], a)
    raw = []
    for model in a.model:
        raw += compare(model, a)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(raw, f, indent=1)


def run_json(cmd):
    p = subprocess.run(cmd, capture_output=True, timeout=1800)
    if p.returncode:
        sys.exit(f"{' '.join(cmd)}: exit {p.returncode}\n{p.stderr.decode(errors='replace')[-2000:]}")
    return json.loads(p.stdout)


def compare(model, a):
    """All rounds on one file; prints a table and returns every run."""
    shape = ["-p", str(a.p), "-n", str(a.n), "-b", a.b, "--depth", str(a.depth), "--threads", str(a.threads)]
    itself = [sys.executable, os.path.abspath(__file__), model, *shape, "--bench-peer", *["--cpu"] * a.cpu, "--flash"]
    engines = [("peer flash " + f, itself + [f]) for f in a.flash.split(",")] if not a.bin else [(b.split("=")[0], b) for b in a.bin]
    if not a.peer_only:
        engines.insert(0, ("heddle", [P.HEDDLE, "bench", model, *shape, "--json"]))
    load = os.getloadavg()[0]
    if load > 0.5 and not a.cpu:
        print(f"beware: the load is {load:.2f} before the first run; with a busy neighbour the peer's threads lose most of "
              "their speed and ratios mean nothing (--cpu)", file=sys.stderr)
    runs = {name: [] for name, _ in engines}
    raw = []
    for k in range(a.rounds):
        for name, cmd in engines if k % 2 == 0 else engines[::-1]:
            r = bench_programs(cmd, model, a) if isinstance(cmd, str) else run_json(cmd)
            raw.append({"model": model, "round": k, "engine": name, **r})
            runs[name].append(flat(r, a.cpu))
    info = {x["engine"]: x for x in raw}
    print(f"{os.path.basename(model)}, {a.threads} threads, {a.rounds} rounds, depth {a.depth}; load before {load:.2f}"
          + ("; tok/s of CPU time" if a.cpu else ""))
    for name in info:
        if name != "heddle":
            print(f"{name}: {info[name]['version']}, {info[name]['isa']}")
    if "heddle" in info:
        print(f"heddle: isa {info['heddle'].get('isa')}, threads {info['heddle'].get('threads')}")
    peers = [n for n in runs if n != "heddle"]
    last = "" if a.peer_only else f"{'heddle / best peer':>24}"
    print(f"{'':14}" + "".join(f"{n + ' tok/s':>28}" for n in runs) + last)
    for key in runs[peers[0]][0]:
        line = f"{key:14}" + "".join(f"{spread([r[key] for r in runs[n]]):>28}" for n in runs)
        if not a.peer_only:
            ratios = [h[key] / max(runs[n][k][key] for n in peers) for k, h in enumerate(runs["heddle"])]
            line += f"{spread(ratios, '{:.2f}'):>24}"
        print(line)
    print("(min median max)", flush=True)
    return raw


if __name__ == "__main__":
    main()
