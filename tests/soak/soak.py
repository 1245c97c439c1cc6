"""soak.py - ordinary and rude clients against running servers for a long time: does anything grow, change or break?

    python3 tests/soak/soak.py --minutes 60 --out DIR --server NAME=COMMAND... [--share 0.7]

Each --server is a command line that serves on port 0 and prints its address.  Clients ask for chats and completions,
streamed or not, with several choices, stops, log probabilities, long prompts; some leave at a random moment, cancel, stop
reading, or ask for nonsense.  Canaries (greedy, fixed seed) must be answered with the same bytes throughout.  Every five
minutes (a sixth of a shorter run) the clients pause until the server holds nothing; two seconds later its anonymous memory,
descriptors and threads are noted.  It passes when
  - after the first pause no memory sample lies above that one by more than 1 % or 2 MiB, whichever is more,
  - descriptors and threads are the same at every pause,
  - all canaries were alike, no reply was a 5xx but the ones a client provoked on purpose, every stream was well formed,
  - SIGTERM ends the server with status 0.
All clients, the servers and this program together use at most --share of the machine's processors: clients wait when they
have used more.  Prints a table and one verdict line; exit status 1 unless it passed.  Standard library only.
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hostile"))
import net  # noqa: E402

IDLE_LIMIT = 120.0  # a stalled reader ends after 30 s
TICK = os.sysconf("SC_CLK_TCK")
WORDS = "weaver thread loom shuttle wool river night lantern run say it a b winter morning the of and quiet door".split()


class Server:
    def __init__(self, name, command, out):
        self.name, self.log = name, os.path.join(out, name + ".log")
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = self._port()
        self.lock = threading.Lock()
        self.did, self.statuses = collections.Counter(), collections.Counter()
        self.samples, self.maps, self.faults = [], [], []
        self.canaries = 0
        self.want, self.chat, self.priorities = {}, False, []

    def _port(self):
        for _ in range(1200):
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", open(self.log, errors="replace").read())
            if found:
                return int(found[1])
            if self.proc.poll() is not None:
                sys.exit(f"{self.name} ended at once: see {self.log}")
            time.sleep(0.1)
        sys.exit(f"{self.name} does not serve: see {self.log}")

    def fault(self, what):
        with self.lock:
            self.faults.append(what)
            if len(self.faults) <= 20:
                print(f"FAULT {self.name}: {what}", flush=True)

    def saw(self, status):
        with self.lock:
            self.statuses[status] += 1

    def post(self, path, body, timeout=300):
        s = net.connect(self.port, timeout)
        try:
            s.sendall(net.request("POST", path, json.dumps(body).encode(), ["Connection: close"]))
            status, headers, raw = net.Reader(s).reply()
        finally:
            s.close()
        self.saw(status)
        return status, headers, raw

    def cpu(self):
        """Seconds of processor time used so far."""
        try:
            with open(f"/proc/{self.proc.pid}/stat") as f:
                words = f.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / TICK

    def sample(self):
        """(anonymous bytes, descriptors, threads)"""
        pid = self.proc.pid
        with open(f"/proc/{pid}/smaps_rollup") as f:
            anon = int(re.search(r"^Anonymous:\s+(\d+)", f.read(), re.M)[1]) * 1024
        return anon, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    def regions(self):
        """Anonymous KiB of each mapping, by its address and name."""
        found, name = {}, ""
        with open(f"/proc/{self.proc.pid}/smaps") as f:
            for line in f:
                if head := re.match(r"([0-9a-f]+)-[0-9a-f]+ .{4} \S+ \S+ \S+ *(.*)", line):
                    name = f"{head[1]} {head[2]}".strip()
                elif line.startswith("Anonymous:"):
                    found[name] = int(line.split()[1])
        return found

    # ---- canaries ----

    def ask(self, path, body):
        """A canary's answer without what may differ (ids, times, what was cached); None when the queue was full."""
        status, _, raw = self.post(path, body)
        if status == 429:
            return None
        if status != 200:
            return f"status {status}: {raw[:200]!r}"
        if not body.get("stream"):
            return json.dumps(json.loads(raw)["choices"])
        return json.dumps([e["choices"] for e in events(raw)])

    def learn(self):
        """The canaries' answers on the quiet server, and what this server knows."""
        long = "Once upon a time there was a weaver who " * 8
        canaries = [("/v1/completions", {"prompt": long, "max_tokens": 24, "logprobs": 3}),
                    ("/v1/completions", {"prompt": "run b a", "max_tokens": 16, "n": 2, "ignore_eos": True}),
                    ("/v1/completions", {"prompt": "stream it", "max_tokens": 20, "stream": True, "logprobs": 1}),
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say it"}], "max_tokens": 16})]
        for path, body in canaries:
            body.update(temperature=0, seed=7)
            first = self.ask(path, body)
            if first is None or first.startswith("status"):
                self.fault(f"canary {path}: {first}")
            else:
                self.want[path, json.dumps(body)] = first
        self.chat = any("chat" in path for path, _ in self.want)
        for value in ("interactive", "background"):
            body = {"prompt": "a", "max_tokens": 1, "priority": value}
            if self.post("/v1/completions", body)[0] == 200:
                self.priorities.append(value)
        # The high-water mark, so that the first sample has it: every row with a long prompt, some that wait, prompts whose
        # every position is scored, which needs the most workspace.  That is planned once and becomes resident when first used.
        text = "the river and the door " * 80
        generate = {"prompt": text, "max_tokens": 30, "ignore_eos": True, "logprobs": 5}
        score = {"prompt": text[:600], "max_tokens": 4, "echo": True, "logprobs": 5}
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "stream": True}
        for path, body in [("/v1/completions", generate), ("/v1/completions", score), ("/v1/chat/completions", chat)]:
            if "chat" in path and not self.chat:
                continue
            many = [threading.Thread(target=self.post, args=(path, body)) for _ in range(10)]
            for t in many:
                t.start()
            for t in many:
                t.join()

    def canary(self, rng):
        (path, body), want = rng.choice(sorted(self.want.items()))
        got = self.ask(path, json.loads(body))
        if got is not None:
            if got == want:
                with self.lock:
                    self.canaries += 1
            else:
                self.fault(f"canary {path} changed: {got[:300]} was {want[:300]}")

    # ---- at rest ----

    def settle(self):
        """Wait until nothing is held, then note a sample.  The clients have been told to pause."""
        end, state = time.monotonic() + IDLE_LIMIT, None
        while time.monotonic() < end:
            state = net.call(self.port, "GET", "/v1/heddle/state")[1]
            held = [state[k] for k in ("rows", "queue", "planning", "body_bytes", "collected_tokens", "running", "waiting")]
            if not any(held) and not state["pages"]["used"] and state["connections"] <= 1:
                break
            time.sleep(0.5)
        else:
            self.fault(f"not at rest {IDLE_LIMIT:.0f} s after the last client: {str(state)[:400]}")
        time.sleep(2)
        self.samples.append(self.sample())
        self.maps.append(self.regions())

    def finish(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        try:
            status = self.proc.wait(60)
            if status:
                self.fault(f"ended with status {status}")
        except subprocess.TimeoutExpired:
            self.fault("SIGTERM did not end it within 60 s")
            self.proc.kill()
            self.proc.wait()

    def judge(self):
        base = self.samples[0] if self.samples else (0, 0, 0)
        allowed = max(base[0] // 100, 2 << 20)
        for i, (anon, fds, threads) in enumerate(self.samples):
            if anon - base[0] > allowed:
                first, now = self.maps[0], self.maps[i]
                where = ", ".join(f"{k} {first.get(k, 0)} -> {v} KiB" for k, v in now.items() if v - first.get(k, 0) > 100)
                self.fault(f"sample {i + 1}: {(anon - base[0]) / 1048576:.2f} MiB more anonymous memory than the first: {where}")
            if (fds, threads) != base[1:]:
                self.fault(f"sample {i + 1}: {fds} descriptors, {threads} threads; the first had {base[1]}, {base[2]}")
        if not self.canaries:
            self.fault("no canary was ever answered")


def events(raw):
    """The JSON events of a whole stream; net.Broken unless it ends as it should."""
    lines = raw.decode().split("\n")
    if "data: [DONE]" not in lines and not any('"error"' in x for x in lines if x.startswith("data: {")):
        raise net.Broken(f"a stream without an end: {raw[-120:]!r}")
    return [json.loads(x[6:]) for x in lines if x.startswith("data: {")]


def make(server, rng, stream=None):
    """A request such as an ordinary client sends: (path, body)."""
    words = rng.choice([2, 5, 20, 60, 250])
    text = " ".join(rng.choice(WORDS) for _ in range(words))
    body = {"max_tokens": rng.choice([1, 8, 16, 40, 80]), "stream": rng.random() < 0.5 if stream is None else stream}
    chat = server.chat and rng.random() < 0.5
    if chat:
        body["messages"] = [{"role": "system", "content": "Be brief."}] * rng.randrange(2)
        body["messages"] += [{"role": "user", "content": text}]
    else:
        body["prompt"] = text if rng.random() < 0.8 else [text, "and then"]
    if rng.random() < 0.5:
        body.update(temperature=rng.choice([0, 0.7, 1.3]), top_p=rng.choice([1, 0.9]), top_k=rng.choice([0, 40]))
    if rng.random() < 0.3:
        body["seed"] = rng.randrange(1 << 31)
    if rng.random() < 0.2:
        body["n"] = rng.choice([2, 3, 4])
    if rng.random() < 0.3:
        body["stop"] = rng.choice([".", ["\n", "the"], ["zzz"], ["b a", "YZ", "word"]])
    if rng.random() < 0.2:
        body.update({"logprobs": True, "top_logprobs": 4} if chat else {"logprobs": 4})
    if rng.random() < 0.2:
        body.update(repetition_penalty=1.1, frequency_penalty=0.3)
    if server.priorities and rng.random() < 0.5:
        body["priority"] = rng.choice(server.priorities)
    return ("/v1/chat/completions" if chat else "/v1/completions"), body


def ordinary(server, rng):
    path, body = make(server, rng)
    status, headers, raw = server.post(path, body)
    if status == 429:
        if int(headers.get("retry-after", 0)) < 1:
            raise net.Broken("429 without Retry-After")
        return
    if status != 200:
        raise net.Broken(f"{path} {str(body)[:200]} answers {status} {raw[:200]!r}")
    got = events(raw) if body["stream"] else [json.loads(raw)]
    reasons = [c.get("finish_reason") for e in got for c in e.get("choices", [])]
    choices = body.get("n", 1) * (2 if isinstance(body.get("prompt"), list) else 1)
    if sum(r in ("stop", "length") for r in reasons) != choices:
        raise net.Broken(f"{path} {str(body)[:200]}: finish reasons {[r for r in reasons if r]}")


def several(server, rng):
    """One kept connection, several requests one after another."""
    s = net.connect(server.port, 300)
    try:
        r = net.Reader(s)
        for _ in range(rng.randrange(2, 6)):
            path, body = make(server, rng)
            body["max_tokens"] = 8
            s.sendall(net.request("POST", path, json.dumps(body).encode()))
            status, headers, raw = r.reply()
            server.saw(status)
            net.judge(status, headers, raw)
    finally:
        s.close()


def leave(server, rng):
    """Hang up at a random moment."""
    path, body = make(server, rng)
    body.update(max_tokens=200, ignore_eos=True)
    s = net.connect(server.port, 30)
    try:
        s.sendall(net.request("POST", path, json.dumps(body).encode()))
        time.sleep(rng.random() ** 3 * 3)
        if rng.random() < 0.5:
            s.settimeout(0.2)
            try:
                s.recv(rng.choice([1, 200, 60000]))
            except TimeoutError:
                pass
    except (ConnectionError, BrokenPipeError):
        pass
    finally:
        (net.reset if rng.random() < 0.5 else type(s).close)(s)


def cancel(server, rng):
    """Cancel by id once the stream has begun; it must end."""
    path, body = make(server, rng, stream=True)
    body.update(max_tokens=200, ignore_eos=True)
    body.pop("n", 0)
    s = net.connect(server.port, 300)
    try:
        s.sendall(net.request("POST", path, json.dumps(body).encode(), ["Connection: close"]))
        r = net.Reader(s)
        head = r.until(b"\r\n\r\n")
        status = int(head.split()[1])
        server.saw(status)
        if status != 200:
            if status != 429:
                raise net.Broken(f"{path} answers {status}")
            return
        while (found := re.search(rb'"id":"([^"]+)"', r.buf)) is None:
            r.more()
        time.sleep(rng.random() ** 2)
        got = server.post("/v1/heddle/cancel", {"id": found[1].decode()})[0]
        if got not in (200, 404):
            raise net.Broken(f"cancel answers {got}")
        try:
            while True:
                r.more()
        except EOFError:
            pass
        if b"[DONE]" not in r.buf and b'"error"' not in r.buf:
            raise net.Broken(f"a cancelled stream ends with {r.buf[-120:]!r}")
    finally:
        s.close()


def stall(server, rng):
    """Ask for much, read nothing for a while, then leave."""
    path, body = make(server, rng, stream=True)
    body.update(max_tokens=400, ignore_eos=True, n=4)
    body.update({"logprobs": True, "top_logprobs": 5} if "chat" in path else {"logprobs": 5})
    s = net.connect(server.port, 30, rcvbuf=2048)
    try:
        s.sendall(net.request("POST", path, json.dumps(body).encode()))
        time.sleep(rng.choice([1, 4, 12]))
    finally:
        (net.reset if rng.random() < 0.5 else type(s).close)(s)


def nonsense(server, rng):
    """Requests that must be refused with a 4xx, and one kind that fails on purpose."""
    path, body = make(server, rng, stream=False)
    kind = rng.randrange(6)
    if kind == 0:
        body["max_tokens"] = -3
    elif kind == 1:
        body["temperature"] = "hot"
    elif kind == 2:
        body["model"] = "no-such-model"
    elif kind == 3:
        path, body = "/v1/completions", {"prompt": "word and " * 60000, "max_tokens": 2}
    elif kind == 4:
        path = "/v1/nowhere"
    else:
        path, body = "/v1/completions", {"prompt": "collapse now", "max_tokens": 4}  # fails on the scripted model
        status, headers, raw = server.post(path, body)
        if status >= 500 and (server.name != "script" or b"error" not in raw):
            raise net.Broken(f"{path} answers {status} {raw[:200]!r}")
        return
    status, headers, raw = server.post(path, body)
    if not 400 <= status < 500:
        raise net.Broken(f"nonsense {kind} answers {status} {raw[:200]!r}")
    net.judge(status, headers, raw)


def control(server, rng):
    for path in ("/health", "/v1/models", "/v1/heddle/state", "/metrics"):
        status = net.call(server.port, "GET", path)[0]
        if status != 200:
            raise net.Broken(f"{path} answers {status}")


KINDS = [(ordinary, 12), (several, 2), (leave, 5), (cancel, 3), (stall, 1), (nonsense, 3), (control, 2), (Server.canary, 6)]


class Soak:
    def __init__(self, servers, share):
        self.servers, self.share = servers, share
        self.go, self.stop = threading.Event(), threading.Event()
        self.lock, self.busy = threading.Lock(), 0
        self.began = self.used = 0.0

    def cpu(self):
        t = os.times()
        return sum(s.cpu() for s in self.servers) + t.user + t.system

    def resume(self):
        self.began, self.used = time.monotonic(), self.cpu()
        self.go.set()

    def over(self):
        """Have we used more than our share since the clients last began?"""
        return self.cpu() - self.used > self.share * (os.cpu_count() or 1) * (time.monotonic() - self.began + 0.5)

    def client(self, server, seed):
        rng = random.Random(seed)
        kinds, weights = zip(*KINDS)
        while not self.stop.is_set():
            if not self.go.wait(0.2) or self.over():
                time.sleep(0.1)
                continue
            with self.lock:  # as pause() does: nobody begins after it has looked
                if not self.go.is_set():
                    continue
                self.busy += 1
            kind = rng.choices(kinds, weights)[0]
            try:
                kind(server, rng)
            except net.Broken as e:
                server.fault(f"{kind.__name__}: {e}")
            except (EOFError, OSError, ValueError, KeyError) as e:
                server.fault(f"{kind.__name__}: {type(e).__name__} {e}")
            with self.lock:
                self.busy -= 1
            with server.lock:
                server.did[kind.__name__] += 1
            self.stop.wait(rng.random() * 0.2)

    def pause(self):
        with self.lock:
            self.go.clear()
        end = time.monotonic() + IDLE_LIMIT
        while self.busy and time.monotonic() < end:
            time.sleep(0.1)
        for s in self.servers:
            try:
                s.settle()
            except (net.Broken, EOFError, OSError) as e:
                s.fault(f"at rest: {type(e).__name__} {e}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--out", required=True)
    p.add_argument("--server", action="append", required=True)
    p.add_argument("--share", type=float, default=0.7)
    p.add_argument("--clients", type=int, default=6, help="per server")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    servers = []
    try:
        run(a, servers)
    finally:
        for s in servers:
            if s.proc.poll() is None:
                s.proc.kill()


def run(a, servers):
    for s in a.server:
        servers.append(Server(*s.split("=", 1), a.out))
    print(f"soak for {a.minutes:g} minutes, seed {a.seed}, {len(servers)} servers, {a.clients} clients each", flush=True)
    for s in servers:
        s.learn()
    soak = Soak(servers, a.share)
    threads = [threading.Thread(target=soak.client, args=(s, a.seed + 1000 * i + k), daemon=True)
               for i, s in enumerate(servers) for k in range(a.clients)]
    for t in threads:
        t.start()
    began, every = time.monotonic(), 60 * min(5.0, a.minutes / 6)
    print("minutes  " + "  ".join(f"{s.name:>8}: anonymous MiB, descriptors, threads, canaries, requests" for s in servers))
    pauses = max(2, round(60 * a.minutes / every))
    for i in range(1, pauses + 1):
        soak.resume()
        until = max(began + every * i, time.monotonic() + every / 2)
        while time.monotonic() < until and all(s.proc.poll() is None for s in servers):
            time.sleep(0.5)
        soak.pause()
        line = f"{(time.monotonic() - began) / 60:7.1f}"
        for s in servers:
            anon, fds, n = s.samples[-1] if s.samples else (0, 0, 0)
            line += f"  {s.name:>8}: {anon / 1048576:9.2f} {fds:4} {n:4} {s.canaries:7} {sum(s.did.values()):8}"
        print(line, flush=True)
        if any(s.proc.poll() is not None for s in servers):
            break
    soak.stop.set()
    for t in threads:
        t.join()
    for s in servers:
        s.finish()
        s.judge()
        print(f"{s.name}: " + " ".join(f"{k} {v}" for k, v in sorted(s.did.items())) + "; replies " +
              " ".join(f"{k}: {v}" for k, v in sorted(s.statuses.items())))
    faults = sum(len(s.faults) for s in servers)
    grown = ", ".join(f"{s.name} {(max(x[0] for x in s.samples) - s.samples[0][0]) / 1048576:+.2f} MiB"
                      for s in servers if s.samples)
    print(f"{'PASS' if not faults else 'FAIL'}: {(time.monotonic() - began) / 60:.1f} minutes, "
          f"{sum(sum(s.did.values()) for s in servers)} requests, {sum(s.canaries for s in servers)} canaries alike, "
          f"highest sample against the first: {grown}; {faults} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
