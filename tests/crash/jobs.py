"""jobs.py - one durable request as its clients see it, over any number of server lives.

A job joins what its viewers read to one list of events, 0, 1, 2, ...  Whatever comes is held against what came before and
against the reference, at once; anything that differs is a fault.  Several viewers may read a job at a time."""
import json
import random
import threading

from http_reply import Reply, call
from specimens import Reference, norm, parse, split

RETRY = (429, 503)  # refused for now: the client asks again


class Fault(Exception):
    pass


class Job:
    def __init__(self, number, spec, tag, keys, rng):
        self.number, self.spec = number, spec
        self.headers = [f"Authorization: Bearer {keys[number % 2]}"]
        self.usage = rng.random() < 0.7  # asked for in streams; one wish for all visits
        self.keyed = rng.random() < 0.85
        # Two API keys use the same idempotency keys: they must not meet.
        self.key = f"{tag}-{number // 2}" if self.keyed else None
        self.store = not self.keyed or rng.random() < 0.4
        self.background = not self.keyed and rng.random() < 0.4
        self.lock = threading.Lock()
        self.who = None       # (id, created), from the first reply that names them
        self.seen = []        # normalised events
        self.total = None     # events, once a stream ended
        self.end_life = 0     # the life in which a client saw the end
        self.is_gone = False  # deleted, and so confirmed
        self.end = None       # once ended: [None] for [DONE], [error]
        self.reply = None     # (status, normalised) of an unstreamed answer
        self.not_before = 0   # the life of the server in which a client comes back
        self.viewers = 0
        self.accepted = False # the head of a reply was seen
        self.was_running = False  # a kill came between the first byte and the end
        self.cancelled = False
        self.checked = 0      # events that were compared
        self.reference = spec.reference and (spec.reference if self.usage else spec.reference.without_usage())

    def __str__(self):
        name = f"key {self.key}" if self.keyed else "stored"
        return f"request {self.number} ({self.spec.name}, {name}, id {self.who and self.who[0]})"

    def body(self, stream):
        return {**self.spec.body, **({"store": True} if self.store else {}), "stream": stream,
                **({"stream_options": {"include_usage": True}} if self.usage else {})}

    def head(self, last=None):
        return self.headers + ([f"Idempotency-Key: {self.key}"] if self.keyed else []) + (
            [f"Last-Event-ID: {last}"] if last is not None else [])

    # ---- what comes ----

    def _is(self, who):
        if self.who is None:
            self.who = who
        elif who != self.who:
            raise Fault(f"was {self.who} and is answered as {who}: it was lost and began again")

    def add(self, number, data):
        """An event with its number.  The caller has checked that numbers follow one another."""
        text, who = norm(parse(data))
        with self.lock:
            self._is(who)
            ref = self.reference
            want = ref.events[number] if ref and self.spec.n == 1 and number < len(ref.events) else None
            if number < len(self.seen):
                if text != self.seen[number]:
                    raise Fault(f"event {number} has changed: was {self.seen[number][:300]} is {text[:300]}")
            elif number > len(self.seen):
                raise Fault(f"event {number} comes where {len(self.seen)} must")
            else:
                if ref and self.spec.n == 1 and text != want:
                    raise Fault(f"event {number} is {text[:300]}, without crashes it is {want and want[:300]}")
                if self.total is not None:
                    raise Fault(f"event {number} behind the end")
                self.seen.append(text)
            self.checked += 1

    def ended(self, error):
        """The end of a stream: error is None for [DONE]."""
        with self.lock:
            end = [None if error is None else norm(error)[0]]
            ref = self.reference
            if self.cancelled:
                # A cancel and a crash soon after it may leave either; what was seen is a prefix all the same.
                if error is not None and error.get("error", {}).get("code") != "cancelled_by_request":
                    raise Fault(f"ends with {end[0][:300]}")
            elif self.end is not None and end != self.end:
                raise Fault(f"ended with {self.end[0]}, ends now with {end[0]}")
            elif ref and end[0] != ref.end:
                raise Fault(f"ends with {end[0]}, without crashes with {ref.end}")
            if error is None and ref:
                if self.spec.n > 1:
                    got = split(self.seen)
                    for c in sorted(set(got) | set(ref.by_choice)):
                        if got.get(c) != ref.by_choice.get(c):
                            raise Fault(f"choice {c} is {differs(got.get(c, []), ref.by_choice.get(c, []))}")
                elif len(self.seen) != len(ref.events):
                    raise Fault(f"{len(self.seen)} events, without crashes {len(ref.events)}")
            self.end = end
            if not self.cancelled:
                self.total = len(self.seen)

    def unstreamed(self, status, obj):
        text, who = norm(obj)
        with self.lock:
            if who[0]:
                self._is(who)
            ref = self.reference
            if self.cancelled and status == 499:
                pass
            elif ref and (status, text) != ref.reply:
                raise Fault(f"unstreamed answers {status} {differs([text], [ref.reply[1]])}, without crashes {ref.reply[0]}")
            elif self.reply and self.reply != (status, text):
                raise Fault(f"unstreamed answered {self.reply[0]} and {status}: {differs([text], [self.reply[1]])}")
            self.checked += max(1, len(self.seen))
            if not self.cancelled:
                self.reply = status, text
            if self.end is None:
                self.end = [None] if status == 200 else [text]

    def object(self, had_ended, status, obj):
        """GET of a stored one: the reply, or what there is so far.  True: it has ended.  had_ended: a client saw its end in
        this life, before this was asked; a crash soon after the end may leave it running again, for a while."""
        if status == 200 and obj.get("status") in ("queued", "in_progress"):
            with self.lock:
                self._is((obj.get("id"), obj.get("created", self.who[1])))
                if had_ended:
                    raise Fault(f"had ended and is {obj['status']}")
            return False
        if status == 200:
            obj.pop("status", None)
        self.unstreamed(status, obj)
        return True

    # ---- reading ----

    def stream(self, port, method, path, body, last, leave_after, plant, timeout):
        """Read a stream that goes on after event `last`, until its end, a cut (Cut), or leave_after events.  False: it was
        refused for now, or the server was told to end."""
        nxt = 0 if last is None else last + 1
        headers = self.head(last) if method == "POST" else self.headers
        with Reply(port, method, path, body, headers, timeout) as r:
            if r.status in RETRY:
                return False
            self.accepted = True
            if not r.is_stream:
                obj = json.loads(r.text(), parse_float=str)
                if self.cancelled and r.status == 499:  # cancelled before it began
                    self.unstreamed(r.status, obj)
                    return True
                raise Fault(f"a stream was asked for, {r.status} comes: {json.dumps(obj)[:300]}")
            for number, data in r.events():
                if data == "[DONE]":
                    self.ended(None)
                    return True
                if number is None:
                    obj = parse(data)
                    if obj.get("error", {}).get("code") in ("shutdown", "engine_closed"):
                        return False
                    self.ended(obj)
                    return True
                if plant:
                    number, data, skip = plant(number, data)
                    if skip:
                        continue
                if number != nxt:
                    raise Fault(f"event {number} comes where {nxt} must")
                nxt += 1
                self.add(number, data)
                if leave_after is not None and nxt > leave_after:
                    return True
        return False  # ended, but not whole

    def attempt(self, port, life, rng, patience, plant=None, leave=True):
        """One visit of a client: false when it must come again.  Cut and Silent come through."""
        last = len(self.seen) - 1 if self.seen and rng.random() < 0.7 else None
        leave_after = (last or 0) + rng.randrange(1, 40) if leave and rng.random() < 0.15 else None
        way = rng.random()
        if self.background and not self.who:
            return self.begin(port)
        if self.who and self.store and (not self.keyed or way < 0.2):
            path = f"{self.spec.path}/{self.who[0]}"
            if way < 0.1:
                had_ended = self.end_life == life
                status, obj = call(port, "GET", path, None, self.headers, patience)
                return status not in RETRY and self.object(had_ended, status, obj)
            path += "?stream=true" + (f"&starting_after={last}" if last is not None else "")
            return self.stream(port, "GET", path, None, last, leave_after, plant, patience)
        if way < 0.8 or not self.keyed:
            return self.stream(port, "POST", self.spec.path, self.body(True), last, leave_after, plant, patience)
        status, obj = call(port, "POST", self.spec.path, self.body(False), self.head(), patience)
        if status in RETRY:
            return False
        self.accepted = True
        self.unstreamed(status, obj)
        return True

    def begin(self, port):
        """A background request: answered at once, read later by its id."""
        body = {**self.body(False), "background": True}
        status, obj = call(port, "POST", self.spec.path, body, self.headers)
        if status not in RETRY:
            if status not in (200, 202) or obj.get("status") not in ("queued", "in_progress", "completed"):
                raise Fault(f"background answers {status} {str(obj)[:300]}")
            with self.lock:
                self.accepted = True
                self._is((obj["id"], obj.get("created")))
        return False

    def conflict(self, port):
        """Another body under the key is refused."""
        if not (self.keyed and self.who):
            return
        body = {**self.body(False), "max_tokens": 7777}
        status, obj = call(port, "POST", self.spec.path, body, self.head())
        if status not in RETRY and (status, obj.get("error", {}).get("code")) != (409, "idempotency_conflict"):
            raise Fault(f"another body under the key answers {status} {str(obj)[:300]}")

    def cancel(self, port):
        if self.who:
            self.cancelled = True
            status, obj = call(port, "POST", "/v1/heddle/cancel", {"id": self.who[0]}, self.headers)
            if status not in (200, *RETRY):
                raise Fault(f"cancel answers {status} {obj}")

    def delete(self, port, life):
        """True: it is deleted."""
        had_ended = self.end_life == life
        status, obj = call(port, "DELETE", f"{self.spec.path}/{self.who[0]}", None, self.headers)
        if status == 404 or status in RETRY:  # 404: deleted by a call whose answer was cut
            return status == 404
        if status == 409 and not had_ended:  # a crash came soon after its end
            return False
        if status != 200 or obj.get("deleted") is not True or obj.get("id") != self.who[0]:
            raise Fault(f"delete answers {status} {obj}")
        return True

    def gone(self, port):
        status, obj = call(port, "GET", f"{self.spec.path}/{self.who[0]}", None, self.headers)
        if status not in (404, *RETRY):
            raise Fault(f"was deleted and answers {status} {str(obj)[:200]}")

    def unseeded(self, port):
        """Against a plain server with the seed that was drawn: it must be the same before and after every crash."""
        last = [e for e in self.seen if '"seed"' in e]
        obj = parse(last[0]) if last else json.loads(self.reply[1]) if self.reply else {}
        if self.reference or self.cancelled or "seed" not in obj:
            return 0
        ref = Reference(port, self.spec, self.headers, {**self.spec.body, "seed": obj["seed"]})
        ref = ref if self.usage else ref.without_usage()
        if self.seen != ref.events[:len(self.seen)]:
            raise Fault(f"with seed {obj['seed']} {differs(self.seen, ref.events)}")
        if self.reply and self.reply != ref.reply:
            raise Fault(f"with seed {obj['seed']} unstreamed {differs([self.reply[1]], [ref.reply[1]])}")
        return len(ref.events)


def differs(got, want):
    for i, (a, b) in enumerate(zip(got, want)):
        if a != b:
            at = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            lo = max(0, at - 60)
            return f"item {i}: ...{a[lo:at + 80]} and not ...{b[lo:at + 80]}"
    return f"{len(got)} items and not {len(want)}"


def make_rng(seed, *more):
    return random.Random(json.dumps([seed, *more]))
