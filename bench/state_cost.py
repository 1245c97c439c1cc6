#!/usr/bin/env python3
"""state_cost.py - what the disk tier and the request log cost the requests that decode.

usage: state_cost.py HEDDLE MODEL [--rounds 9] [--rows 1,8] [-p 600] [-n 192] [--budget 192M] [--threads 2] [--dir DIR]

Two servers of one model: one plain, one with --state-dir, whose requests are durable (each has an Idempotency-Key, so
every token goes to the log).  They take turns, and the order turns round every round; the one that waits uses no CPU.  The
KV budget is small and every prompt is new, so that pages are evicted - and written to disk - while others decode.
A rate is that of the time in which all rows of a batch decode: tokens between the last row's first token and the first
row's last one.  Prints, for each number of rows, rates and the ratio with / without of each round: min, median, max.
Standard library only.
"""
import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time


class Server:
    def __init__(self, a, extra):
        self.proc = subprocess.Popen([a.heddle, "serve", a.model, "--port", "0", "--threads", str(a.threads), "--ctx", "4096",
                                      "--kv-budget", a.budget, "--max-rows", "16", *extra],
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.proc.stdout:
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            sys.exit("a server did not start")
        threading.Thread(target=self.proc.stdout.read, daemon=True).start()

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port)
        c.request("GET", path)
        return c.getresponse().read().decode()


def stream(server, body, key, out):
    """Times of the token events of one request."""
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})})
    r = c.getresponse()
    if r.status != 200:
        sys.exit(f"{r.status}: {r.read().decode()}")
    times = []
    for line in r:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    out.append(times[:-1])  # the last one has the finish reason
    c.close()


def batch(server, rows, a, rng, durable):
    """Tokens per second while all rows decode."""
    outs, threads = [], []
    for i in range(rows):
        body = {"prompt": [rng.randrange(300, 4000) for _ in range(a.p)], "max_tokens": a.n, "ignore_eos": True, "temperature": 0,
                "stream": True, "return_token_ids": False}
        key = f"k{rng.random()}" if durable else None
        threads.append(threading.Thread(target=stream, args=(server, body, key, outs)))
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    begin, end = max(o[0] for o in outs), min(o[-1] for o in outs)
    return sum(sum(begin < t <= end for t in o) for o in outs) / (end - begin)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("heddle")
    ap.add_argument("model")
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--rows", default="1,8")
    ap.add_argument("-p", type=int, default=600)
    ap.add_argument("-n", type=int, default=192)
    ap.add_argument("--budget", default="192M")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--dir")
    a = ap.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(dir=a.dir) as d:
        plain, state = Server(a, []), Server(a, ["--state-dir", os.path.join(d, "state")])
        for rows in [int(x) for x in a.rows.split(",")]:
            rates = {plain: [], state: []}
            for s in (plain, state):
                batch(s, rows, a, rng, s is state)  # warm
            for i in range(a.rounds):
                for s in (plain, state) if i % 2 else (state, plain):
                    rates[s].append(batch(s, rows, a, rng, s is state))
            ratios = [y / x for x, y in zip(rates[plain], rates[state])]
            print(f"rows {rows}: plain {statistics.median(rates[plain]):.1f} tok/s, with state {statistics.median(rates[state]):.1f}; "
                  f"with / without {min(ratios):.3f} {statistics.median(ratios):.3f} {max(ratios):.3f}", flush=True)
        seen = json.loads(state.get("/v1/heddle/state"))
        print("disk:", json.dumps(seen.get("disk")), "durable:", json.dumps(seen.get("durable")))
        for s in (plain, state):
            s.proc.terminate()
            s.proc.wait()


if __name__ == "__main__":
    main()
