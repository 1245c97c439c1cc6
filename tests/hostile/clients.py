"""clients.py - hostile clients, canaries and watchers against running servers, for a given time.

    python3 tests/hostile/clients.py --minutes 30 --out DIR --server NAME=COMMAND... [--flat NAME] [--fuzz COMMAND]

Each --server is a command line that serves on port 0 and prints its address (heddle serve MODEL --port 0).  For the
whole time every server gets the attacks of attacks.py from several threads, canary requests whose answers must stay the
same bit for bit, and polls of /health, /v1/heddle/state and /metrics.  Five times the attacks pause until the server is
idle: then nothing may run, wait or be held, and memory and descriptors are noted.  At the end the attacks begin once
more, and SIGTERM in their midst must end it with status 0 and no sanitizer report.  --flat NAME: resident memory of that
server, mapped files aside, may not grow after the first quarter by more than 2 % or 4 MiB.  --fuzz: command lines run in rotation beside it,
`{}` replaced by seconds; a non-zero status is a finding.
Prints one line per server and fuzzer and a summary; exit status 1 when there was any finding.  Standard library only.
"""
import argparse
import collections
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import attacks
import net

PAUSES = (0.1, 0.25, 0.5, 0.75, 1.0)
FLAT_FROM = 0.25     # memory of this pause is what later ones are held against
HEALTH_LIMIT = 10.0  # seconds: the machine is busy on purpose and one server is instrumented
IDLE_LIMIT = 90.0    # readers that stall end after 30 s, sockets without progress after 60 s
BAD = re.compile(r"AddressSanitizer|LeakSanitizer|UndefinedBehavior|runtime error:|ThreadSanitizer|Assertion|assert")


class Findings:
    def __init__(self):
        self.lock, self.all = threading.Lock(), []

    def add(self, who, what):
        with self.lock:
            if len(self.all) < 1000:
                self.all.append(f"{who}: {what}")
            if len(self.all) <= 50:
                print(f"FINDING {who}: {what}", flush=True)


class Target:
    """A server under attack."""

    def __init__(self, name, command, out, findings):
        self.name, self.findings = name, findings
        self.log = os.path.join(out, name + ".log")
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = self._port()
        self.lock = threading.Lock()
        self.counts, self.statuses = collections.Counter(), collections.Counter()
        self.canaries = self.misses = 0
        self.health, self.rss, self.fds = [], [], []
        self.go, self.stop, self.ending = threading.Event(), threading.Event(), threading.Event()
        self.busy = 0
        self.chat = self.scored = True
        self.want = {}

    def _port(self):
        for _ in range(1200):
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", open(self.log, errors="replace").read())
            if found:
                return int(found[1])
            if self.proc.poll() is not None:
                sys.exit(f"{self.name} ended at once: see {self.log}")
            time.sleep(0.1)
        sys.exit(f"{self.name} does not serve: see {self.log}")

    def wait(self, seconds):
        """Sleep inside an attack; cut short when attacks are to pause."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.go.is_set():
            time.sleep(min(0.2, max(0.0, end - time.monotonic())))

    def saw(self, status):
        with self.lock:
            self.statuses[status] += 1

    def found(self, what):
        self.findings.add(self.name, what)

    def memory(self):
        """Resident bytes of its own and of mapped files.  The latter are the page cache's: rows of the embedding come in
        when a token is first used, so they grow towards the file's size however long one waits before looking."""
        with open(f"/proc/{self.proc.pid}/status") as f:
            text = f.read()
        return [int(re.search(rf"{k}:\s+(\d+)", text)[1]) * 1024 for k in ("RssAnon", "RssFile")]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/fd"))

    # ---- threads ----

    def attacker(self, seed):
        rng = random.Random(seed)
        funcs, weights = zip(*attacks.ATTACKS)
        while not self.stop.is_set():
            if not self.go.wait(0.2):
                continue
            with self.lock:
                self.busy += 1
            f = rng.choices(funcs, weights)[0]
            try:
                f(self, rng)
            except net.Broken as e:
                self.found(f"{f.__name__}: {e}")
            except (EOFError, OSError):
                pass
            with self.lock:
                self.counts[f.__name__] += 1
                self.busy -= 1
            time.sleep(0.02)

    def ask(self, key):
        """A canary: its answer without what may differ (ids, times), or None when it was refused or cut."""
        path, body = key
        try:
            status, reply = net.call(self.port, "POST", path, json.loads(body), 300)
        except net.Broken as e:
            self.found(f"canary: {e}")
            return None
        except (EOFError, OSError):
            return None
        if status != 200:
            return None
        if isinstance(reply, dict):
            reply["usage"].pop("prompt_tokens_details")  # what was cached differs
            return json.dumps([reply["choices"], reply["usage"]], sort_keys=True)
        events = [json.loads(x[6:]) for x in reply.split("\n") if x.startswith("data: {")]
        if "data: [DONE]" not in reply or any("error" in e for e in events):
            return None
        return json.dumps([e["choices"] for e in events], sort_keys=True)

    def learn(self):
        """The canaries' answers on the quiet server, asked twice."""
        long = "Once upon a time there was a weaver who " * 3
        keys = [("/v1/completions", {"prompt": long, "max_tokens": 24, "seed": 7, "temperature": 1.0, "logprobs": 3}),
                ("/v1/completions", {"prompt": "run b a", "max_tokens": 16, "seed": 8, "temperature": 0.8, "top_k": 40,
                                     "top_p": 0.9, "repetition_penalty": 1.2, "n": 3, "ignore_eos": True}),
                ("/v1/completions", {"prompt": "stream it", "max_tokens": 20, "seed": 9, "stream": True}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say it"}], "max_tokens": 16,
                                          "seed": 1})]
        for path, body in keys:
            key = (path, json.dumps(body))
            first, second = self.ask(key), self.ask(key)
            if first is None and "chat" in path:
                continue  # a model without a chat template
            if first is None or first != second:
                self.found(f"canary {path} does not answer twice alike on a quiet server: {first} {second}")
            else:
                self.want[key] = first

    def canary(self, seed):
        rng = random.Random(seed)
        keys = sorted(self.want)
        while keys and not self.ending.wait(0.3):
            if not self.go.is_set():
                continue
            with self.lock:
                self.busy += 1
            key = rng.choice(keys)
            got = self.ask(key)
            with self.lock:
                self.busy -= 1
                self.canaries += got is not None
                self.misses += got is None
            if got is not None and got != self.want[key]:
                self.found(f"canary {key[0]} changed: {got[:300]} was {self.want[key][:300]}")

    def watcher(self):
        """/health on one kept connection (floods of connections cannot starve it), the others on fresh ones."""
        s = None
        while not self.ending.wait(0.25):
            if self.proc.poll() is not None:
                self.found(f"the server died with status {self.proc.returncode}")
                return
            try:
                s = s or net.connect(self.port, HEALTH_LIMIT * 3)
                began = time.monotonic()
                s.sendall(net.request("GET", "/health"))
                status, headers, body = net.Reader(s).reply()
                took = time.monotonic() - began
                if status == 503 and b"too_many_connections" in body:
                    s.close()
                    s = None
                    continue
                if status != 200 or json.loads(body) != {"status": "ok"}:
                    self.found(f"/health answers {status} {body[:100]!r}")
                if headers.get("connection") == "close":
                    s.close()
                    s = None
                self.health.append(took)
                if took > HEALTH_LIMIT:
                    self.found(f"/health took {took:.1f} s")
            except (EOFError, OSError) as e:
                if isinstance(e, TimeoutError):
                    self.found("/health did not answer")
                if s:
                    s.close()
                s = None
            if random.random() < 0.1:
                try:
                    net.call(self.port, "GET", random.choice(["/v1/heddle/state", "/metrics", "/v1/models"]))
                except net.Broken as e:
                    self.found(f"control route: {e}")
                except (EOFError, OSError):
                    pass
        if s:
            s.close()

    # ---- between the attacks ----

    def settle(self):
        """Pause the attacks; the server must come to rest."""
        self.go.clear()
        end = time.monotonic() + IDLE_LIMIT
        state = None
        while time.monotonic() < end:
            try:
                status, state = net.call(self.port, "GET", "/v1/heddle/state")
                held = [state[k] for k in ("rows", "queue", "planning", "body_bytes", "collected_tokens", "running",
                                           "waiting")]
                pages = state["pages"]["used"]
                # the watcher's connection and this one
                if status == 200 and not self.busy and not any(held) and pages <= 0 and state["connections"] <= 2:
                    break
            except (net.Broken, EOFError, OSError):
                pass
            if self.proc.poll() is not None:
                return
            time.sleep(0.5)
        else:
            self.found(f"not idle {IDLE_LIMIT:.0f} s after the last attack: {str(state)[:600]} busy {self.busy}")
        time.sleep(1)
        self.rss.append(self.memory())
        self.fds.append(self.descriptors())

    def finish(self, flat, start_fds):
        if self.proc.poll() is None:
            time.sleep(1)  # canaries and the watcher have left
            self.go.set()
            time.sleep(3)
            self.proc.send_signal(signal.SIGTERM)
            try:
                status = self.proc.wait(120)
                if status:
                    self.found(f"SIGTERM ended it with status {status}")
            except subprocess.TimeoutExpired:
                self.found("SIGTERM did not end it within 120 s")
                self.proc.kill()
        else:
            self.found(f"it had ended with status {self.proc.returncode}")
        for line in open(self.log, errors="replace"):
            if BAD.search(line):
                self.found(f"log: {line.strip()[:300]}")
                break
        if self.fds and self.fds[-1] > start_fds + 1:  # the watcher's connection may be new
            self.found(f"{start_fds} descriptors at the start, {self.fds[-1]} at the end")
        self.stop.set()
        base = PAUSES.index(FLAT_FROM)
        if flat and len(self.rss) > base:
            before, after = self.rss[base][0], self.rss[-1][0]
            grown, allowed = after - before, max(before // 50, 4 << 20)
            if grown > allowed:
                self.found(f"memory grew by {grown / 1048576:.1f} MiB after the warm-up")

    def report(self):
        lat = sorted(self.health) or [0]
        mib = " ".join(f"{own / 1048576:.1f}+{file / 1048576:.1f}" for own, file in self.rss)
        print(f"{self.name}: {sum(self.counts.values())} attacks, {sum(self.statuses.values())} replies judged, "
              f"{self.canaries} canaries alike ({self.misses} refused or cut), "
              f"/health median {lat[len(lat) // 2] * 1e3:.1f} ms "
              f"99 % {lat[len(lat) * 99 // 100] * 1e3:.0f} ms worst {lat[-1] * 1e3:.0f} ms, resident MiB {mib}, "
              f"descriptors {self.fds}")
        print("  attacks", " ".join(f"{k} {v}" for k, v in sorted(self.counts.items())))
        print("  replies", " ".join(f"{k}: {v}" for k, v in sorted(self.statuses.items())), flush=True)


def fuzz(commands, end, out, findings, done):
    """Each in turn for up to a minute until the time is over."""
    n = 0
    while commands and (left := end - time.monotonic()) > 10:
        command = commands[n % len(commands)]
        words = shlex.split(command)
        name = os.path.basename(words[words[0] == "nice"])
        log = os.path.join(out, f"{name}.{n}.log")
        with open(log, "wb") as f:
            status = subprocess.call(shlex.split(command.replace("{}", str(int(min(60, left))))), stdout=f, stderr=f,
                                     stdin=subprocess.DEVNULL)
        runs = re.findall(r"Done (\d+) runs", open(log, errors="replace").read())
        done[name] += int(runs[-1]) if runs else 0
        if status:
            findings.add(name, f"status {status}, see {log}")
        n += 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--out", required=True)
    p.add_argument("--server", action="append", default=[])
    p.add_argument("--flat", action="append", default=[])
    p.add_argument("--fuzz", action="append", default=[])
    p.add_argument("--threads", type=int, default=6, help="attackers per server")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    a = p.parse_args()
    print(f"hostile clients for {a.minutes:g} minutes, seed {a.seed}", flush=True)
    findings, fuzzed = Findings(), collections.Counter()
    targets = [Target(*s.split("=", 1), a.out, findings) for s in a.server]
    for t in targets:
        t.learn()
    start_fds = [t.descriptors() for t in targets]
    began = time.monotonic()
    end = began + 60 * a.minutes
    threads = [threading.Thread(target=fuzz, args=(a.fuzz, end, a.out, findings, fuzzed))]
    for i, t in enumerate(targets):
        threads += [threading.Thread(target=t.attacker, args=(a.seed + 1000 * i + k,)) for k in range(a.threads)]
        threads += [threading.Thread(target=t.canary, args=(a.seed + 1000 * i + 500 + k,)) for k in range(2)]
        threads.append(threading.Thread(target=t.watcher))
    for th in threads:
        th.start()
    for share in PAUSES:
        for t in targets:
            t.go.set()
        while time.monotonic() < began + 60 * a.minutes * share and any(t.proc.poll() is None for t in targets):
            time.sleep(0.5)
        settling = [threading.Thread(target=t.settle) for t in targets]
        for th in settling:
            th.start()
        for th in settling:
            th.join()
        notes = [f"{t.name} {t.rss[-1][0] / 1048576:.1f} MiB {t.fds[-1]} descriptors" for t in targets if t.rss]
        print(f"  {share:.0%}: " + ", ".join(notes), flush=True)
    for t in targets:
        t.ending.set()
    for t, fds in zip(targets, start_fds):
        t.finish(t.name in a.flat, fds)
    for th in threads:
        th.join()
    for t in targets:
        t.report()
        if not t.canaries:
            t.found("no canary was ever answered")
    print("fuzzers:", ", ".join(f"{k} {v} runs" for k, v in sorted(fuzzed.items())) or "none")
    print(f"{a.minutes:g} minutes, {sum(sum(t.counts.values()) for t in targets)} attacks, "
          f"{sum(t.canaries for t in targets)} canaries, {sum(fuzzed.values())} fuzz runs, {len(findings.all)} findings")
    sys.exit(1 if findings.all else 0)


if __name__ == "__main__":
    main()
