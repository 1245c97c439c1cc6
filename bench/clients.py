#!/usr/bin/env python3
"""clients.py - streaming clients against heddle's server and others: same model file, same requests, alternating.

usage: clients.py MODEL [--clients 8,16] [--rounds 7] [--requests 2] [-p 128] [-n 64] [--threads 2] [--heddle build/heddle]
                  [--peer "NAME=COMMAND"]...

COMMAND starts a peer's server; {model} {port} {threads} {clients} {ctx} in it are filled in, and it must serve /v1/completions.
Per round each server in turn (the order turns round every round) is started, warmed with one request, and meets N clients at
once, each of which sends its --requests one after the other: -p random token ids that nobody sent before, -n tokens out, greedy,
no end of text, streamed.  Reported, min median max over rounds: tokens generated per second of the whole batch, the 95th percentile
of the time to the first token and the 99th of the time between tokens (ms, all clients together), and heddle's ratio to the best peer
of the round (tokens/s: higher is better; times: theirs / heddle's).
The client is a process of its own with a lower priority, as it shares the cores.  Standard library only.
"""
import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, command, a, clients):
        self.port = free_port()
        fill = {"model": a.model, "port": self.port, "threads": a.threads, "clients": clients, "ctx": clients * (a.p + a.n + 64)}
        self.proc = subprocess.Popen(command.format(**fill).split(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     cwd=tempfile.gettempdir())  # some write logs where they stand
        end = time.monotonic() + 120
        while True:
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            if self.proc.poll() is not None or time.monotonic() > end:
                sys.exit(f"a server did not start: {command}")
            time.sleep(0.1)

    def stop(self):
        self.proc.terminate()
        self.proc.wait()


def stream(port, prompt, n):
    """(times of the events with text, tokens generated) of one request; the clock is the monotonic one."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    times, tokens = [time.monotonic()], 0
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        sys.exit(f"{r.status}: {r.read().decode()}")
    for line in r:
        if line.startswith(b"data: {"):
            v = json.loads(line[6:])
            if v.get("usage"):
                tokens = v["usage"]["completion_tokens"]
            if v.get("choices") and not v["choices"][0].get("finish_reason"):
                times.append(time.monotonic())
    c.close()
    if tokens != n:
        sys.exit(f"{tokens} tokens instead of {n}: {times}")
    return times


def batch(server, clients, a, draw):
    prompt = lambda: [draw.randrange(1000, 20000) for _ in range(a.p)]
    stream(server.port, prompt(), 4)
    work = [[prompt() for _ in range(a.requests)] for _ in range(clients)]
    all_times = []

    def client(prompts):
        for p in prompts:
            all_times.append(stream(server.port, p, a.n))

    threads = [threading.Thread(target=client, args=(w,)) for w in work]
    t0 = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - t0
    if len(all_times) != clients * a.requests:
        sys.exit("a client failed")
    gaps = sorted(b - x for times in all_times for x, b in zip(times[1:], times[2:]))
    first = sorted(times[1] - times[0] for times in all_times)
    at = lambda xs, q: 1000 * xs[min(len(xs) - 1, int(q * len(xs)))]
    return {"tok/s": clients * a.requests * a.n / took, "first p95 ms": at(first, 0.95), "gap p99 ms": at(gaps, 0.99)}


def spread(xs, form="{:.1f}"):
    return " ".join(form.format(f(xs)) for f in (min, statistics.median, max))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--clients", default="8,16")
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--requests", type=int, default=2)
    ap.add_argument("-p", type=int, default=128)
    ap.add_argument("-n", type=int, default=64)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--heddle", default="build/heddle")
    ap.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    a = ap.parse_args()
    a.model, a.heddle = os.path.abspath(a.model), os.path.abspath(a.heddle)
    os.nice(5)
    own = a.heddle + " serve {model} --port {port} --threads {threads} --max-rows {clients} --ctx 1024"
    servers = {"heddle": own, **dict(p.split("=", 1) for p in a.peer)}
    draw = random.Random(1)
    print(f"{os.path.basename(a.model)}, {a.threads} threads, {a.rounds} rounds; load before {os.getloadavg()[0]:.2f}")
    for clients in map(int, a.clients.split(",")):
        runs = {name: [] for name in servers}
        for k in range(a.rounds):
            for name in list(servers)[:: 1 if k % 2 == 0 else -1]:
                server = Server("nice -n -5 " + servers[name] if os.geteuid() == 0 else servers[name], a, clients)
                try:
                    runs[name].append(batch(server, clients, a, draw))
                finally:
                    server.stop()
        for what in runs["heddle"][0]:
            line = f"{clients:3} clients {what:13}" + "".join(f"  {n}: {spread([r[what] for r in runs[n]])}" for n in runs)
            peers = [n for n in runs if n != "heddle"]
            if peers:
                better, sign = (max, 1) if what == "tok/s" else (min, -1)
                best = [better(runs[n][k][what] for n in peers) for k in range(a.rounds)]
                line += "  ratio " + spread([(r[what] / b) ** sign for r, b in zip(runs["heddle"], best)], "{:.2f}")
            print(line, flush=True)


if __name__ == "__main__":
    main()
