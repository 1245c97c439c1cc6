"""specimens.py - the requests of the crash test, what a server without crashes answers to them, and what may differ.

A specimen is a body and its route.  Its *reference* is what a plain server (no state directory) answers: the events of the
stream, and the reply of the unstreamed form.  An answer is compared after `norm`, which takes out the only things that
may differ between two answers to one body:

    id, created                  another response object (within one durable request they must be the same; jobs.py)
    usage.prompt_tokens_details  what happened to be cached
    timings                      how long it took

Floats are compared as the text they were sent as.  Events of several choices may interleave differently in an ordinary
stream and in a durable one, so they are compared choice by choice."""
import copy
import json
import random
import threading

from http_reply import Cut, call, Reply

WORDS = "weaver thread loom shuttle wool river night lantern run say it a b winter morning the of and quiet door".split()
SCRIPT_SEED = 20  # of the scripted model's logits


def script_model():
    """A scripted model: words, halves of characters, sampled answers that differ by seed, one that ends, one that fails."""
    rng = random.Random(SCRIPT_SEED)
    vocab = ["</s>", "X", "YZ", "\u00e9", {"hex": "f09f"}, {"hex": "9880"}, "run", "say", " ", "word", "\n", ".", " the",
             " river", " stop", "ping", "\"", "\u6c34", {"hex": "e6"}, {"hex": "b0b4"}] + [" " + w for w in WORDS]

    def steps(n):
        """Per step some tokens with close logits, so that each seed gives another answer; rarely the end."""
        out = []
        for _ in range(n):
            ids = rng.sample(range(1, len(vocab)), 6)
            out.append([[i, round(rng.uniform(7, 11), 3)] for i in ids] + [[0, round(rng.uniform(0, 4), 3)]])
        return out

    return {"vocab": vocab, "special": {"eos": [0]}, "context": 4096, "step_delay_ms": 3, "prompt_delay_ms": 0.2,
            "rules": [{"match": "collapse", "emit": [1, 2, 12, 13, 9, 4, 5, 3] * 5, "then": "fail"},
                      {"match": "say", "emit": [6, 8, 7, 4, 5, 3, 12, 13, 18, 19, 11] * 4, "then": "eos"},
                      {"match": "wander", "emit": [1] * 97, "then": "loop", "top": steps(97)}],
            "default": {"emit": [1] * 31, "then": "loop", "top": steps(31)}}


def text(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


class Specimen:
    def __init__(self, name, path, body):
        self.name, self.path, self.body = name, path, body
        self.n = body.get("n", 1) * (len(body["prompt"]) if isinstance(body.get("prompt"), list)
                                     and isinstance(body["prompt"][0], (str, list)) else 1)
        self.seeded = "seed" in body
        self.reference = None


def specimens(flavour, chat, seed, scale, context):
    """About 100 specimens.  flavour: "script" or "model"; chat: the model has a template; scale: times the lengths of
    answers; context: of the model, in tokens."""
    rng = random.Random(seed)
    out = []
    shared = "Once upon a time " + text(rng, 150 if context >= 2048 else 25)

    def add(name, kind, prompt, n_tokens, **kw):
        n_tokens = max(1, int(n_tokens * scale)) if n_tokens > 1 else n_tokens
        if kind == "chat" and chat:
            body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]}
            if "top" in kw:
                body.update(logprobs=True, top_logprobs=kw["top"])
        else:
            body = {"prompt": prompt}
            if "top" in kw:
                body["logprobs"] = kw["top"]
        kw.pop("top", 0)
        path = "/v1/chat/completions" if kind == "chat" and chat else "/v1/completions"
        out.append(Specimen(name, path, {**body, "max_tokens": n_tokens, **kw}))

    for kind in ("chat", "completions"):
        for i in range(3):
            long = shared + " " + text(rng, 10)
            few, some, many = rng.randrange(2, 12), rng.randrange(30, 80), rng.randrange(150, 300)
            s = {"seed": rng.randrange(1 << 40), "temperature": rng.choice([0.7, 1.0, 1.3])}
            add("greedy", kind, "wander " + text(rng, 5), some, temperature=0, seed=5)
            add("sampled", kind, text(rng, 20), many, top_k=40, top_p=0.95, ignore_eos=True, **s)
            add("short", kind, text(rng, 3), few, **s)
            add("one", kind, text(rng, 3), 1, **s)
            add("shared", kind, long, some, min_p=0.02, **s)
            add("two", kind, "wander " + text(rng, 4), many // 3, n=2, **s)
            add("stop", kind, text(rng, 8), many, stop=[" river stop", " loom", "\n\n"], ignore_eos=True, **s)
            add("logprobs", kind, "wander " + text(rng, 8), some, top=rng.randrange(5), **s)
            add("logprobs+stop", kind, "wander " + text(rng, 8), some, top=2, stop=["XX", " the river", "ing"], **s)
            add("three+logprobs", kind, long, some // 2, n=3, top=2, **s)
            add("penalties", kind, "wander it", some, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3,
                min_tokens=some // 2, **s)
            add("dry+bias", kind, "wander on", some, dry_multiplier=0.8, logit_bias={"9": 2, "11": -3},
                return_token_ids=True, **s)
            add("timings", kind, "say " + text(rng, 2), some, timings_per_token=True, priority="high",
                total_timeout_ms=3600000, **s)
            add("low", kind, long, many, priority="low", cache_prompt=False, user="u", ignore_eos=True, **s)
            add("unseeded", kind, "wander " + text(rng, 3), many // 2, temperature=1.0)
            add("cancel", kind, text(rng, 3), 2 * many, ignore_eos=True, **s)
    for i in range(3):
        s = {"seed": rng.randrange(1 << 40)}
        few, some = rng.randrange(5, 20), rng.randrange(30, 60)
        add("echo", "completions", text(rng, 12), some, echo=True, **s)
        add("echo+logprobs", "completions", text(rng, 30), some, echo=True, top=3, **s)
        add("score", "completions", shared, 0, echo=True, top=1, **s)
        add("prompts", "completions", [text(rng, 5), shared, "wander"], some, n=2, **s)
        add("ids", "completions", [rng.randrange(32, 127) for _ in range(30)], some, return_token_ids=True, **s)
        if flavour == "script":
            add("fails", rng.choice(["chat", "completions"]), "collapse " + text(rng, i), 200, **s)
            add("fails at once", "completions", "collapse", 3, **s)
    return out


def norm(obj):
    """What must be equal, as text; and (id, created)."""
    obj = dict(obj)
    who = obj.pop("id", None), obj.pop("created", None)
    if isinstance(obj.get("usage"), dict):
        obj["usage"] = {k: v for k, v in obj["usage"].items() if k != "prompt_tokens_details"}
    obj.pop("timings", None)
    return json.dumps(obj, sort_keys=True), who


def parse(data):
    return json.loads(data, parse_float=str)


def split(events):
    """Normalised events by choice; those of no choice (usage) under -1."""
    out = {}
    for e in events:
        c = json.loads(e)["choices"]
        out.setdefault(c[0]["index"] if c else -1, []).append(e)
    return out


class Reference:
    """events: normalised; end: None for [DONE], else the normalised error; reply: (status, normalised body)."""

    def __init__(self, port, spec, headers, body=None):
        body = body or spec.body
        whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
        self.events, self.end = [], "cut"
        with Reply(port, "POST", spec.path, whole, headers, 120) as r:
            if r.status != 200:
                raise SystemExit(f"the plain server answers {r.status} to {spec.name} {body}: {r.text()[:400]}")
            for number, data in r.events():
                if data == "[DONE]":
                    self.end = None
                elif number is None:
                    self.end = norm(parse(data))[0]
                else:
                    if number != len(self.events):
                        raise SystemExit(f"the plain server numbers {spec.name} oddly: {number}")
                    self.events.append(norm(parse(data))[0])
        if self.end == "cut":
            raise SystemExit(f"the plain server's stream of {spec.name} has no end")
        status, reply = call(port, "POST", spec.path, body, headers, 120)
        self.reply = status, norm(reply)[0]
        self.by_choice = split(self.events)

    def without_usage(self):
        """The same for a client that did not ask for usage: no "usage": null in the events, and not the last event."""
        r = copy.copy(self)
        r.events = []
        for e in map(json.loads, self.events):
            if e["choices"]:
                e.pop("usage")
                r.events.append(json.dumps(e, sort_keys=True))
        r.by_choice = split(r.events)
        return r


def learn(port, specs, headers):
    """References of all, some at a time."""
    left, lock, failed = list(specs), threading.Lock(), []

    def work():
        while True:
            with lock:
                if not left:
                    return
                s = left.pop()
            try:
                if s.seeded:
                    s.reference = Reference(port, s, headers)
            except (SystemExit, Cut) as e:
                failed.append(e)
                return

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise SystemExit(f"no reference: {failed[0]!r}")
