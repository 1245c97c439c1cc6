"""crash.py - durable requests under kill -9: nothing accepted is lost, repeated or changed.

    python3 tests/crash/crash.py --heddle build/heddle --out DIR --run CYCLES=MODEL... [--seed N] [--plant FAULT]

MODEL is a file or "script" for the scripted model of specimens.py.  For each run:

  1. A plain server without a state directory answers every specimen: the references.
  2. A server with a fresh --state-dir gets a mixed load of durable requests from several client threads and is killed with
     SIGKILL at a random time, CYCLES times: while it starts, while it resumes, while it generates; sometimes it gets SIGTERM
     instead, with a drain too short for what runs.  Each life has other flags that must not matter (rows, chunk sizes,
     threads, cache).  Clients lose their connection, come back with the same key and Last-Event-ID, or without, or
     unstreamed, or by id, at once or lives later, several to one request; they leave on their own too, cancel, delete, and
     try another body under a key.  Two more hold conversations that the server keeps (talk.py).
  3. A last life is not killed: every request must end, and everything is read once more.

jobs.py says what is held against what.  A request may only be missing when no byte of an answer was ever seen; then the
client asks again.  --plant puts in a fault that must be found (exit 0 when it was).  Prints one summary line; exit
status 1 on any failure.  The schedule of kills follows --seed.  Standard library only."""
import argparse
import collections
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import plants  # noqa: E402
from http_reply import Cut, Silent, call, net  # noqa: E402
from jobs import Fault, Job, make_rng  # noqa: E402
from specimens import learn, script_model, specimens  # noqa: E402
from talk import Talk  # noqa: E402

KEYS = ["first-key", "second-key"]
OPEN = 24          # unfinished requests that clients know of at a time
FINISH = 120.0     # seconds that the last life has for what is unfinished
PATIENCE = 40.0    # seconds without a byte; streams have comments
BAD = re.compile(r"AddressSanitizer|LeakSanitizer|UndefinedBehavior|runtime error:|ThreadSanitizer|Assertion|assert|"
                 r"corrupt|damaged|lost dura", re.I)
# How a life ends: (share, name, seconds from ... to, counted from exec or from the moment it listens).
ENDS = [(0.10, "start", 0.0, 0.03), (0.15, "resume", 0.0, 0.25), (0.70, "run", 0.2, 1.7), (0.05, "term", 0.2, 1.0)]


class Server:
    """One life of a server."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "wb") as f:
            self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f)

    def port(self, timeout):
        """The port once it listens, None when it does not within the time."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and self.proc.poll() is None:
            found = re.search(r"at http://127\.0\.0\.1:(\d+)", self.text())
            if found:
                return int(found[1])
            time.sleep(0.003)
        return None

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def end(self, how):
        self.proc.send_signal(how)
        try:
            return self.proc.wait(60)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            return "nothing: it did not end within 60 s"


class World:
    """One model, its lives and its clients."""

    def __init__(self, a, number, cycles, model):
        self.a, self.cycles, self.seed = a, cycles, a.seed * 1000 + number
        self.dir = os.path.join(a.out, f"run{number}")
        os.makedirs(self.dir)
        self.model, self.flavour = model, "model"
        if model == "script":
            path = os.path.join(self.dir, "script.json")
            with open(path, "w") as f:
                json.dump(script_model(), f)
            self.model, self.flavour = "script:" + path, "script"
        self.state = os.path.join(self.dir, "state")
        self.lock = threading.Lock()
        self.port, self.life = None, 0
        self.jobs, self.open, self.done, self.deleted, self.broken = [], [], [], [], []
        self.stop, self.finishing = threading.Event(), False
        self.failures, self.did, self.ends = [], collections.Counter(), collections.Counter()
        self.plant = plants.Plant(a.plant) if a.plant else None

    def fault(self, who, what):
        with self.lock:
            self.failures.append(f"{who}: {what}")
            if len(self.failures) <= 20:
                print(f"FAULT life {self.life}, {who}: {what}", flush=True)
            if isinstance(who, Job):
                for where in (self.open, self.done, self.deleted):
                    if who in where:
                        where.remove(who)
                if who not in self.broken:
                    self.broken.append(who)

    # ---- servers ----

    def command(self, *more):
        keys = [x for k in KEYS for x in ("--api-key", k)]
        return [self.a.heddle, "serve", self.model, "--port", "0", "--kv-budget", "64M", *keys, *self.a.flag, *more]

    def plain(self):
        s = Server(self.command("--max-rows", "32", "--max-queued", "900"), os.path.join(self.dir, "plain.log"))
        port = s.port(120)
        if not port:
            sys.exit(f"the plain server does not serve:\n{s.text()[-2000:]}")
        return s, port

    def learn(self):
        """References from a plain server."""
        s, port = self.plain()
        try:
            head = [f"Authorization: Bearer {KEYS[0]}"]
            limits = call(port, "GET", "/v1/heddle/state", None, head)[1]["limits"]
            chat = call(port, "POST", "/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, head)[0] == 200
            self.chat = chat
            self.specs = specimens(self.flavour, chat, self.seed, self.a.scale, limits.get("context", 0))
            make_rng(self.seed, "specimens").shuffle(self.specs)
            self.specs = self.specs[:self.a.specimens]
            learn(port, self.specs, head)
        finally:
            s.end(signal.SIGKILL)

    def start(self, rng):
        flags = ["--state-dir", self.state, "--comment-interval", "0.2", "--drain-timeout", "0.3"]
        # None of these may change an answer.
        flags += ["--max-rows", str(rng.choice([3, 8, 16])), "--step-tokens", str(rng.choice([16, 64, 256])),
                  "--max-queued", str(rng.choice([16, 256])), "--threads", str(rng.choice([1, 2]))]
        flags += ["--no-cache"] if rng.random() < 0.2 else []
        flags += ["--default-max-tokens", "64"] if rng.random() < 0.3 else []
        self.server = Server(self.command(*flags), os.path.join(self.dir, f"life{self.life + 1}.log"))
        with self.lock:
            self.life += 1

    def serve(self, timeout=60):
        """Wait until it listens and let clients in.  False: it did not."""
        port = self.server.port(timeout)
        if port is None:
            self.fault("server", f"does not listen: {self.server.text()[-600:]}")
            return False
        with self.lock:
            self.port = port
        return True

    def end(self, how):
        with self.lock:
            self.port = None
        if (died := self.server.proc.poll()) is not None:
            self.fault("server", f"ended by itself with {died}: {self.server.text()[-600:]}")
        with self.lock:
            for j in self.open:
                j.was_running |= j.accepted and j.end is None
        status = self.server.end(how)
        if how == signal.SIGTERM and status != 0 and died is None:
            self.fault("server", f"SIGTERM: status {status}: {self.server.text()[-600:]}")
        log = self.server.text()
        if found := BAD.search(log):
            at = max(0, found.start() - 200)
            self.fault("log", f"{self.server.log}: {log[at:at + 600]}")
        elif os.path.exists(self.server.log):
            os.unlink(self.server.log)

    def cycle(self, rng):
        self.start(rng)
        roll, name, lo, hi = rng.random(), "run", 0.2, 1.7
        for share, *end in ENDS:
            if roll < share:
                name, lo, hi = end
                break
            roll -= share
        wait = rng.uniform(lo, hi)
        if name == "start":
            time.sleep(wait)
        elif self.serve():
            time.sleep(wait)
        self.ends[name] += 1
        self.end(signal.SIGTERM if name == "term" else signal.SIGKILL)

    # ---- clients ----

    def pick(self, rng, life):
        """(job, what) for a visit, or None.  The job has one more viewer from then on: another client that picks may not see it
        as alone."""
        with self.lock:
            choice = self.choose(rng, life)
            if choice:
                choice[0].viewers += 1
            return choice

    def choose(self, rng, life):
        roll = rng.random()
        # Without a key only one client can ask: a second one would ask for another request.
        ready = [j for j in self.open if j.not_before <= life and j.viewers < (3 if j.keyed or j.who else 1)]
        if not self.finishing and len(self.open) < OPEN and (roll < 0.4 or not ready):
            j = Job(len(self.jobs), rng.choice(self.specs), f"s{self.seed}", KEYS, rng)
            self.jobs.append(j)
            self.open.append(j)
            return j, "visit"
        if self.done and not self.finishing and roll < 0.6:
            j = rng.choice(self.done[-200:])
            if j.store and j.who and not j.viewers and roll < 0.41:
                self.done.remove(j)
                self.deleted.append(j)
                return j, "delete"
            return j, "visit"
        if self.deleted and not self.finishing and roll < 0.62:
            return rng.choice(self.deleted), "delete"
        if not ready:
            return None
        j = rng.choice(ready)
        if j.who and roll > 0.98:
            return j, "conflict"
        if j.spec.name == "cancel" and j.who and roll > 0.8:
            return j, "cancel"
        return j, "visit"

    def client(self, number):
        rng = make_rng(self.seed, "client", number)
        while not self.stop.is_set():
            port, life = self.port, self.life
            choice = self.pick(rng, life) if port else None
            if not choice:
                time.sleep(0.01)
                continue
            job, what = choice
            again = False
            try:
                if what == "visit":
                    plant = self.plant and self.plant.event
                    again = not job.attempt(port, life, rng, PATIENCE, plant, leave=not self.finishing)
                elif what == "delete":
                    if job.is_gone:
                        job.gone(port)
                    else:
                        job.is_gone = job.delete(port, life)
                else:
                    getattr(job, what)(port)
                self.did[what] += 1
            except (Cut, Silent) as e:
                self.cut(job, e, port, life, rng)
            except (Fault, net.Broken) as e:
                self.fault(job, e)
            except Exception as e:  # what a client cannot read is a failure too
                self.fault(job, f"{what}: {e!r}")
            with self.lock:
                job.viewers -= 1
                if job.end is not None and job in self.open:
                    job.end_life = life
                    self.open.remove(job)
                    self.done.append(job)
            if again:
                self.did["again"] += 1
                time.sleep(0.05)

    def cut(self, job, why, port, life, rng):
        self.did["cut"] += 1
        if isinstance(why, Silent) and self.life == life and self.port == port:
            self.fault(job, f"{why}, for {PATIENCE:.0f} s")
            return
        for _ in range(100):
            if self.port != port or self.life != life:
                break
            time.sleep(0.01)
        else:
            self.fault(job, "the connection was cut by a server that lives on")
            return
        with self.lock:
            job.not_before = 0 if self.finishing else life + rng.choice([0, 1, 1, 1, 2, 5])
            if not job.keyed and not job.who and job in self.open:
                self.open.remove(job)  # nothing to find it by
                self.did["without a name"] += 1

    # ---- the whole ----

    def finish(self, rng):
        """A last life: everything ends, everything is read once more."""
        with self.lock:
            self.finishing = True
            for j in self.open:
                j.not_before = 0
        self.start(rng)
        if not self.serve():
            return
        end = time.monotonic() + FINISH
        while self.open and time.monotonic() < end and not self.server.proc.poll():
            time.sleep(0.05)
        self.stop.set()
        for t in self.threads:
            t.join(PATIENCE + 20)
        for j in list(self.open):
            self.fault(j, f"did not end within {FINISH:.0f} s of the last life, {len(j.seen)} events")
        left, lock = list(self.done), threading.Lock()

        def reread():
            while True:
                with lock:
                    if not left:
                        return
                    j = left.pop()
                try:
                    how = ("POST", j.spec.path, j.body(True)) if j.keyed else (
                        "GET", f"{j.spec.path}/{j.who[0]}?stream=true", None)
                    j.stream(self.port, *how, None, None, None, PATIENCE)
                    if j.store and j.who:
                        j.object(True, *call(self.port, "GET", f"{j.spec.path}/{j.who[0]}", None, j.headers, PATIENCE))
                    if j.keyed and not j.cancelled:
                        j.unstreamed(*call(self.port, "POST", j.spec.path, j.body(False), j.head(), PATIENCE))
                    self.did["read at the end"] += 1
                except (Fault, net.Broken, Cut, Silent) as e:
                    self.fault(j, f"read at the end: {e!r}" if isinstance(e, Cut) else f"read at the end: {e}")
                except Exception as e:
                    self.fault(j, f"read at the end: {e!r}")

        readers = [threading.Thread(target=reread) for _ in range(4)]
        for t in readers:
            t.start()
        for t in readers:
            t.join()
        try:
            for j in self.deleted:
                if j.is_gone:
                    j.gone(self.port)
            state = call(self.port, "GET", "/v1/heddle/state", None, [f"Authorization: Bearer {KEYS[0]}"])[1]
            durable = state["durable"]
            if durable["lost"]:
                self.fault("state", f"requests lost durability: {durable}")
        except (Fault, Cut, Silent, KeyError) as e:
            self.fault("state", repr(e))
        self.end(signal.SIGTERM)

    def run(self):
        began = time.monotonic()
        self.learn()
        learned = time.monotonic() - began
        rng = make_rng(self.seed, "kills")
        self.threads = [threading.Thread(target=self.client, args=(k,), daemon=True) for k in range(self.a.clients)]
        self.talks = [Talk(self, k, KEYS[k], PATIENCE) for k in range(2 if self.chat else 0)]
        self.threads += self.talks
        for t in self.threads:
            t.start()
        for i in range(self.cycles):
            self.cycle(rng)
            if self.plant:
                self.plant.log(self.state, self.done, self.open)
            if (i + 1) % 25 == 0:
                ended = len(self.done) + len(self.deleted)
                print(f"  {i + 1} kills, {len(self.jobs)} requests, {ended} ended, {len(self.failures)} failures, "
                      f"{time.monotonic() - began:.0f} s", flush=True)
            if len(self.failures) > 100:
                break
        self.finish(rng)
        s, port = self.plain()
        try:
            for t in self.talks:
                self.did["turns"] += t.check(port)
            for j in self.done:
                try:
                    j.checked += j.unseeded(port)
                except (Fault, Cut, Silent) as e:
                    self.fault(j, e)
        finally:
            s.end(signal.SIGKILL)
        killed = sum(j.was_running for j in self.jobs)
        if self.cycles and not killed:
            self.fault("harness", "no request was running at any kill")
        print(f"  {len(self.specs)} specimens learned in {learned:.0f} s, {time.monotonic() - began:.0f} s in all; lives "
              "ended at " + ", ".join(f"{k} {v}" for k, v in sorted(self.ends.items())) + "; "
              + ", ".join(f"{k} {v}" for k, v in sorted(self.did.items())), flush=True)
        return collections.Counter(cycles=self.cycles, requests=len(self.jobs), killed=killed,
                                   events=sum(j.checked for j in self.jobs), failures=len(self.failures))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--heddle", required=True)
    p.add_argument("--out", required=True, help="an empty folder")
    p.add_argument("--run", action="append", required=True, metavar="CYCLES=MODEL")
    p.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"))
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--specimens", type=int, default=1000, help="at most so many")
    p.add_argument("--scale", type=float, default=1.0, help="of the lengths of answers")
    p.add_argument("--flag", action="append", default=[], help="a further argument of every server")
    p.add_argument("--plant", choices=sorted(plants.ALL))
    a = p.parse_args()
    print(f"crash test, seed {a.seed}" + (f", planted: {a.plant}" if a.plant else ""), flush=True)
    total, put_in = collections.Counter(), False
    for i, r in enumerate(a.run):
        cycles, _, model = r.partition("=")
        print(f"{model}:", flush=True)
        world = World(a, i, int(cycles), model)
        total += world.run()
        put_in |= bool(world.plant and world.plant.over)
    print(f"crash: {total['cycles']} cycles, {total['requests']} requests, {total['killed']} killed while running, "
          f"{total['events']} events compared, {total['failures']} failures", flush=True)
    if a.plant:
        print(f"planted {a.plant}: " + ("found" if total["failures"] else "NOT FOUND" if put_in else "never put in"))
    sys.exit(not total["failures"] if a.plant else total["failures"] > 0)


if __name__ == "__main__":
    main()
