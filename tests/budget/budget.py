"""budget.py - is a server's memory ever more than `heddle fit` declares, and does it keep what it admitted?

    python3 tests/budget/budget.py --heddle BIN --model MODEL --seconds N [--seed S] [--clients N] [--tight SHARE] [--slack MIB] -- OPTIONS

OPTIONS are options of `heddle serve` that `heddle fit` takes too.  fit is asked what they come to, the server runs with them,
and clients load it with all there is, at random (seeded): rows without a cap that outgrow their projection, long prompts,
prompts that share a beginning, several choices, log probabilities, scored prompts, embeddings, large and odd bodies, large
heads, readers that stall or leave, cancels, many connections.  The budget is far below what they would like.

Memory is the kernel's count of this process, read 100 times a second from /proc/PID/status and, at the end, its high-water
mark (VmHWM).  Two kinds are told apart:
  RssAnon   packed weights, pages, workspace, heap, stacks: at most fit's total (weights, norms, workspace, tables, disk tier,
            program, budget) and its serving total.
  RssFile   pages of mapped files, which the system may drop at any moment: at most the model file (read through a mapping
            when it is packed, its token embedding stays mapped) and the program with its libraries.
It passes when neither is ever more, VmHWM is not more than both, no reply is a 5xx but `overloaded` (refused before it ran),
no stream ends in an error, the files of the disk tier never have more than --state-cap, the load wanted more pages than there are (rows gave way or waited, the budget was used to 90 %),
and SIGTERM ends the server with status 0.  --tight SHARE: the peak must be at least that share of fit's total, so that a
declaration with room for anything does not pass; --slack MIB: the peak may be that much above fit's total and no more, for clients
that are far from what a server allows them all together.  --requests: go on until so many were answered, four times as long at most.
Without the prefix cache a server at rest must be back below what is declared beside the budget.  Prints one line, exit status 1 unless it passed.  Standard library only.
"""
import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hostile"))
import net  # noqa: E402

MIB = 1 << 20


def status_bytes(pid):
    """The Vm and Rss lines of /proc/PID/status, in bytes."""
    with open(f"/proc/{pid}/status") as f:
        return {k: int(v) * 1024 for k, v in re.findall(r"^(VmHWM|VmRSS|RssAnon|RssFile|RssShmem):\s+(\d+) kB", f.read(), re.M)}


def mapped_files(pid):
    """Sizes of all files that the process has mapped."""
    names = set()
    with open(f"/proc/{pid}/maps") as f:
        for line in f:
            words = line.split(None, 5)
            if len(words) == 6 and words[5].startswith("/"):
                names.add(words[5].strip())
    return {n: os.path.getsize(n) for n in names if os.path.isfile(n)}


class Server:
    def __init__(self, a, log):
        self.log = log
        with open(log, "wb") as out:
            self.proc = subprocess.Popen([a.heddle, "serve", a.model, "--port", "0", "--drain-timeout", "2", *a.options],
                                         stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.lock = threading.Lock()
        self.faults, self.did, self.statuses = [], collections.Counter(), collections.Counter()
        self.peak, self.over = collections.Counter(), threading.Event()
        self.files = {}
        self.port = None
        self.sampler = threading.Thread(target=self.sample, daemon=True)
        self.sampler.start()
        self.port = self.wait_for_port()

    def wait_for_port(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.proc.poll() is None:
            with open(self.log, errors="replace") as f:
                found = re.search(r"at http://127\.0\.0\.1:(\d+)", f.read())
            if found:
                return int(found[1])
            time.sleep(0.05)
        with open(self.log, errors="replace") as f:
            sys.exit(f"no server: {f.read()[-2000:]}")

    def sample(self):
        while not self.over.wait(0.01):
            try:
                now = status_bytes(self.proc.pid)
                if not self.files or self.peak["n"] % 200 == 0:
                    self.files.update(mapped_files(self.proc.pid))
            except (OSError, ValueError):
                return
            self.peak["n"] += 1
            for k, v in now.items():
                if v > self.peak[k]:
                    self.peak[k] = v

    def fault(self, what):
        with self.lock:
            self.faults.append(what)
            if len(self.faults) <= 10:
                print(f"FAULT {what}", flush=True)

    def saw(self, status):
        with self.lock:
            self.statuses[status] += 1

    def look(self):
        return net.call(self.port, "GET", "/v1/heddle/state", timeout=60)[1]


class Load:
    """What clients ask for.  Token ids are used where a length matters, since any model takes them."""

    def __init__(self, server, seed):
        self.s = server
        self.stop = threading.Event()
        model = net.call(server.port, "GET", "/v1/models")[1]["data"][0]
        self.ctx, self.vocab = model["max_model_len"], model["meta"]["n_vocab"]
        rng = random.Random(seed)
        self.prefixes = [self.ids(rng, self.ctx // 2) for _ in range(4)]
        self.chat = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})[0] == 200

    def ids(self, rng, n):
        return [rng.randrange(33, min(self.vocab - 8, 250)) for _ in range(n)]

    def prompt(self, rng):
        n = int(rng.choice([0.02, 0.1, 0.3, 0.6, 0.9]) * self.ctx) or 1
        if rng.random() < 0.4:  # a beginning that others have
            return (rng.choice(self.prefixes) + self.ids(rng, n))[:max(n, self.ctx // 2)]
        return self.ids(rng, n)

    def body(self, rng, **more):
        b = {"prompt": self.prompt(rng), "ignore_eos": True}
        if rng.random() < 0.4:
            b["max_tokens"] = rng.choice([1, 10, 60, 200])
        if rng.random() < 0.2:
            b["priority"] = rng.choice(["high", "low"])
        if rng.random() < 0.1:
            b["cache_prompt"] = False
        if rng.random() < 0.2:
            b["cache_salt"] = rng.choice(["a", "b"])
        if rng.random() < 0.2:
            b["stop"] = ["".join(chr(rng.randrange(97, 123)) for _ in range(rng.choice([3, 200])))]
        b.update(more)
        return b

    def judge(self, what, status, raw, headers=None):
        """Refused before it ran is fine: full (429), too much at a time (503 overloaded), 4xx of odd requests."""
        self.s.saw(status)
        if status == 200 and b'{"error"' in raw:
            at = raw.index(b'{"error"')
            self.s.fault(f"{what}: {raw[at:at + 200]!r}")
        if status >= 500 and b'"overloaded"' not in raw:
            self.s.fault(f"{what}: {status} {raw[:200]!r}")

    def post(self, path, body, what="ask"):
        s = net.connect(self.s.port, 240)
        try:
            s.sendall(net.request("POST", path, json.dumps(body).encode(), ["Connection: close"]))
            status, headers, raw = net.Reader(s).reply()
        finally:
            s.close()
        self.judge(what, status, raw)
        return status, raw

    # ---- kinds of clients ----

    def stream(self, rng):
        self.post("/v1/completions", self.body(rng, stream=True), "stream")

    def collect(self, rng):
        self.post("/v1/completions", self.body(rng), "collect")

    def choices(self, rng):
        self.post("/v1/completions", self.body(rng, n=rng.choice([2, 4, 8]), stream=rng.random() < 0.5), "choices")

    def logprobs(self, rng):
        self.post("/v1/completions", self.body(rng, logprobs=rng.choice([1, 20]), n=rng.choice([1, 3])), "logprobs")

    def score(self, rng):
        self.post("/v1/completions", {"prompt": self.prompt(rng), "max_tokens": 0, "echo": True, "logprobs": 5}, "score")

    def embed(self, rng):
        self.post("/v1/embeddings", {"input": [self.prompt(rng) for _ in range(rng.choice([1, 5, 30]))]}, "embed")

    def turns(self, rng):
        """A conversation whose every turn begins with the one before."""
        text, path = "say something of the weather in winter. ", "/v1/completions"
        for _ in range(4):
            if self.chat:
                path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 16}
            else:
                body = {"prompt": text, "max_tokens": 16}
            status, raw = self.post(path, body, "turns")
            if status != 200:
                return
            text += raw[-40:].decode("utf-8", "replace") + " and then?"

    def large(self, rng):
        """Bodies near the limit: much text, many values, deep nesting, junk."""
        kind = rng.randrange(5)
        size = rng.choice([20000, 100000, 200000])
        body = {"prompt": "a", "max_tokens": 1}
        if kind == 0:
            body["prompt"] = "word " * (size // 5)
        elif kind == 1:
            body["junk"] = [{}] * (size // 4)
        elif kind == 2:
            body["junk"] = {str(i): [i] for i in range(size // 14)}
        elif kind == 3:
            body = {"messages": [{"role": "user", "content": "x" * 40}] * (size // 80), "max_tokens": 1}
        else:
            body["prompt"] = "x" * size
        path = "/v1/chat/completions" if kind == 3 else rng.choice(["/v1/completions", "/tokenize"])
        self.post(path, body, "large")

    def slow(self, rng):
        """A body that comes in two parts."""
        data = json.dumps(self.body(rng, max_tokens=4, junk="y" * rng.choice([10, 100000]))).encode()
        s = net.connect(self.s.port, 240)
        try:
            cut = len(data) * 2 // 3
            s.sendall(net.request("POST", "/v1/completions", data, ["Connection: close"])[:-len(data)] + data[:cut])
            self.stop.wait(rng.random() * 3)
            s.sendall(data[cut:])
            status, _, raw = net.Reader(s).reply()
            self.judge("slow", status, raw)
        finally:
            s.close()

    def heads(self, rng):
        """Connections with large heads, kept for a while."""
        many = []
        try:
            for _ in range(rng.choice([2, 8])):
                s = net.connect(self.s.port, 60)
                many.append(s)
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"v" * 4000) for i in range(12)))
            self.stop.wait(rng.random() * 2)
        finally:
            for s in many:
                s.close()

    def leave(self, rng):
        s = net.connect(self.s.port, 60)
        try:
            s.sendall(net.request("POST", "/v1/completions", json.dumps(self.body(rng, stream=rng.random() < 0.7)).encode()))
            self.stop.wait(rng.random() ** 3 * 2)
        finally:
            (net.reset if rng.random() < 0.5 else type(s).close)(s)

    def stall(self, rng):
        """Ask for much, read nothing for a while; then leave, or read it all."""
        body = self.body(rng, logprobs=rng.choice([5, 20]), n=rng.choice([1, 4]), stream=rng.random() < 0.6)
        s = net.connect(self.s.port, 240, rcvbuf=2048)
        try:
            s.sendall(net.request("POST", "/v1/completions", json.dumps(body).encode(), ["Connection: close"]))
            self.stop.wait(rng.choice([0.5, 3, 8]))
            if rng.random() < 0.5:
                try:
                    status, _, raw = net.Reader(s).reply()
                except EOFError:
                    return  # it may be closed when what nobody reads takes too much memory
                self.judge("stall", status, raw)
        except ConnectionError:
            pass
        finally:
            (net.reset if rng.random() < 0.5 else type(s).close)(s)

    def cancel(self, rng):
        s = net.connect(self.s.port, 240)
        try:
            s.sendall(net.request("POST", "/v1/completions", json.dumps(self.body(rng, stream=True)).encode(), ["Connection: close"]))
            r = net.Reader(s)
            status = int(r.until(b"\r\n\r\n").split()[1])
            self.s.saw(status)
            if status != 200:
                return
            while (found := re.search(rb'"id":"([^"]+)"', r.buf)) is None:
                r.more()
            self.stop.wait(rng.random())
            net.call(self.s.port, "POST", "/v1/heddle/cancel", {"id": found[1].decode()})
            while True:
                r.more()
        except EOFError:
            pass
        finally:
            s.close()

    def control(self, rng):
        for path in ("/v1/heddle/state", "/metrics", "/v1/models", "/health"):
            net.call(self.s.port, "GET", path, timeout=60)

    def run(self, seed):
        rng = random.Random(seed)
        kinds = [(self.stream, 8), (self.collect, 5), (self.choices, 5), (self.logprobs, 3), (self.score, 3), (self.embed, 3),
                 (self.turns, 2), (self.large, 3), (self.slow, 2), (self.heads, 1), (self.leave, 5), (self.stall, 4),
                 (self.cancel, 3), (self.control, 1)]
        what, weights = zip(*kinds)
        while not self.stop.is_set():
            kind = rng.choices(what, weights)[0]
            try:
                kind(rng)
            except net.Broken as e:
                self.s.fault(f"{kind.__name__}: {e}")
            except (EOFError, OSError) as e:
                if not self.stop.is_set():
                    self.s.fault(f"{kind.__name__}: {type(e).__name__} {e}")
            with self.s.lock:
                self.s.did[kind.__name__] += 1


def fit(a):
    r = subprocess.run([a.heddle, "fit", a.model, "--json", *a.options], capture_output=True, text=True, check=False)
    if r.returncode not in (0, 1) or not r.stdout:
        sys.exit(f"fit: {r.stderr}")
    return json.loads(r.stdout)


def tier_bytes(options):
    """Bytes of the files of the disk tier, unfinished ones too."""
    total = 0
    if "--state-dir" in options:
        folder = os.path.join(options[options.index("--state-dir") + 1], "kv")
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            try:
                total += os.path.getsize(os.path.join(folder, name))
            except FileNotFoundError:
                pass  # it made room
    return total


def metric(port, name):
    found = re.search(rf"^{re.escape(name)}{{[^}}]*}} ([\d.e+]+)$", net.call(port, "GET", "/metrics")[1], re.M)
    return float(found[1]) if found else 0.0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--heddle", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--clients", type=int, default=24)
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    p.add_argument("--tight", type=float, default=0)
    p.add_argument("--slack", type=float, default=0)
    p.add_argument("--requests", type=int, default=0)
    p.add_argument("options", nargs="*")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    said = fit(a)
    with tempfile.TemporaryDirectory() as d:
        server = Server(a, os.path.join(d, "log"))
        try:
            run(a, server, said)
        finally:
            if server.proc.poll() is None:
                server.proc.kill()
                server.proc.wait()


def run(a, server, said):
    load = Load(server, a.seed)
    threads = [threading.Thread(target=load.run, args=(a.seed + 1 + i,), daemon=True) for i in range(a.clients)]
    for t in threads:
        t.start()
    end, used, seen = time.monotonic() + a.seconds, 0.0, collections.Counter()
    late = end + 3 * a.seconds  # a busy machine
    while server.proc.poll() is None and (time.monotonic() < end or time.monotonic() < late and sum(server.did.values()) < a.requests):
        time.sleep(0.2)
        try:
            state = server.look()
        except (OSError, EOFError):
            continue  # all connections are taken
        pages = state["pages"]
        used = max(used, (pages["used"] + pages["cached"]) / max(1, pages["total"]))
        for entry in state["queue"]:
            seen[entry["reason"]] += 1
        on_disk = tier_bytes(a.options)
        seen["on_disk"] = max(seen["on_disk"], on_disk)
        if (cap := state.get("disk", {}).get("cap_bytes")) and on_disk > cap:
            server.fault(f"{on_disk} bytes of files, the cap is {cap}")
        for k in ("planned_bytes", "reply_bytes", "unread_bytes", "body_bytes"):
            seen[k] = max(seen[k], state[k])
    if server.proc.poll() is not None:
        with open(server.log, errors="replace") as f:
            server.fault(f"the server ended by itself with status {server.proc.returncode}: {f.read()[-3000:]}")
    load.stop.set()
    deadline = time.monotonic() + 240
    for t in threads:  # whoever was admitted is answered
        t.join(max(0, deadline - time.monotonic()))
    if any(t.is_alive() for t in threads):
        server.fault("requests are not answered 240 s after the last was sent")
    gave_way = 0.0
    while time.monotonic() < deadline and server.proc.poll() is None:
        try:
            gave_way = metric(server.port, "heddle:preemptions_total")
            break
        except (OSError, EOFError):
            time.sleep(0.5)
    if server.proc.poll() is None and "--no-cache" in a.options:
        time.sleep(4)  # an engine at rest has given its pages back
        rest = status_bytes(server.proc.pid)["RssAnon"]
        if rest > said["fixed_bytes"]:
            server.fault(f"{rest / MIB:.1f} MiB at rest, {said['fixed_bytes'] / MIB:.1f} are declared beside the budget")
    peak = collections.Counter(server.peak)
    if server.proc.poll() is None:
        peak["VmHWM"] = status_bytes(server.proc.pid)["VmHWM"]
        server.files.update(mapped_files(server.proc.pid))
        server.over.set()
        server.proc.send_signal(signal.SIGTERM)
        try:
            if server.proc.wait(60):
                server.fault(f"ended with status {server.proc.returncode}")
        except subprocess.TimeoutExpired:
            server.fault("SIGTERM did not end it")
    files = sum(server.files.values()) + (0 if os.path.realpath(a.model) in server.files else said["file_bytes"])
    total, serving = said["total_bytes"], said["serving_total_bytes"]
    if peak["RssAnon"] > total + serving:
        server.fault(f"{peak['RssAnon'] / MIB:.1f} MiB of its own memory, {(total + serving) / MIB:.1f} are declared")
    if a.slack and peak["RssAnon"] > total + a.slack * MIB:
        server.fault(f"{peak['RssAnon'] / MIB:.1f} MiB of its own memory, {total / MIB:.1f} are declared without what clients cause, "
                     f"and these clients cause {a.slack} at most")
    if peak["RssFile"] > files:
        server.fault(f"{peak['RssFile'] / MIB:.1f} MiB of mapped files that have {files / MIB:.1f}")
    if peak["RssShmem"]:
        server.fault(f"{peak['RssShmem']} bytes of shared memory, none is declared")
    if peak["VmHWM"] > total + serving + files:
        server.fault(f"VmHWM {peak['VmHWM'] / MIB:.1f} MiB, {(total + serving + files) / MIB:.1f} are declared")
    if a.tight and peak["RssAnon"] < total * a.tight:
        server.fault(f"{peak['RssAnon'] / MIB:.1f} MiB at the peak, but {total / MIB:.1f} are declared without what clients cause")
    if used < 0.9 or not (gave_way or seen["pages"]):
        server.fault(f"the budget was used to {used:.0%}, {gave_way:.0f} rows gave way, {seen['pages']} waits: no overcommit")
    print(f"{'FAIL' if server.faults else 'PASS'}: seed {a.seed}, {a.seconds:g} s, {sum(server.did.values())} requests "
          f"({' '.join(f'{k}: {v}' for k, v in sorted(server.statuses.items()))}), {gave_way:.0f} rows gave way, budget used to "
          f"{used:.0%}; own memory at most {peak['RssAnon'] / MIB:.1f} MiB of {total / MIB:.1f} + {serving / MIB:.1f} declared, "
          f"mapped {peak['RssFile'] / MIB:.1f} of {files / MIB:.1f}, VmHWM {peak['VmHWM'] / MIB:.1f}; at most planned "
          f"{seen['planned_bytes'] / MIB:.1f}, replies {seen['reply_bytes'] / MIB:.1f}, unread {seen['unread_bytes'] / MIB:.1f}, "
          f"bodies {seen['body_bytes'] / MIB:.1f}, on disk {seen['on_disk'] / MIB:.1f}; {len(server.faults)} faults")
    sys.exit(1 if server.faults else 0)


if __name__ == "__main__":
    main()
