"""files.py - hostile files and command lines: heddle must answer with a run or a message, never with a crash.

    python3 tests/hostile/files.py HEDDLE MODELS_DIR [--mutations N] [--seed N] [--only PART]

HEDDLE should be built with sanitizers; MODELS_DIR holds the tiny models that test_tiny writes (HEDDLE_TINY_DIR).
Parts: keys (odd configurations, one key of a valid file at a time), tensors (shapes, types, names, missing ones),
bytes (random single fields and random bytes), scripts (scripted-model files), batches (lines of requests), cli (odd
arguments and outputs).
A finding is: death by a signal, a sanitizer's report, an exit status but 0, 1 and 64 (usage), more than a minute, or a
failure without a message.  Files that gave a finding are kept.  Standard library only.
"""
import argparse
import collections
import glob
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

import attacks

FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
BAD = re.compile(rb"AddressSanitizer|LeakSanitizer|runtime error:|Assertion|stack smashing|SUMMARY: ")


class File:
    """A GGUF file taken apart: keys [(name, type, value)], tensors [[name, dims, type, offset]], data."""

    def __init__(self, path):
        self.raw = open(path, "rb").read()
        self.at = 8
        n_tensors, n_keys = self.num("<Q"), self.num("<Q")
        self.keys = [[self.text(), *self.value()] for _ in range(n_keys)]
        self.tensors = [[self.text(), [self.num("<Q") for _ in range(self.num("<I"))], self.num("<I"), self.num("<Q")]
                        for _ in range(n_tensors)]
        self.data = self.raw[(self.at + 31) // 32 * 32:]
        self.head = self.at

    def num(self, f):
        v = struct.unpack_from(f, self.raw, self.at)[0]
        self.at += struct.calcsize(f)
        return v

    def text(self):
        n = self.num("<Q")
        self.at += n
        return self.raw[self.at - n:self.at]

    def item(self, t):
        return self.text() if t == 8 else self.num(FORMATS[t])

    def value(self):
        t = self.num("<I")
        if t != 9:
            return t, self.item(t)
        inner, n = self.num("<I"), self.num("<Q")
        return t, (inner, [self.item(inner) for _ in range(n)])

    def bytes(self):
        def text(s):
            return struct.pack("<Q", len(s)) + s

        def item(t, v):
            return text(v) if t == 8 else struct.pack(FORMATS[t], v)
        out = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))]
        for name, t, v in self.keys:
            out += [text(name), struct.pack("<I", t)]
            out += [struct.pack("<IQ", v[0], len(v[1])), *(item(v[0], x) for x in v[1])] if t == 9 else [item(t, v)]
        for name, dims, t, offset in self.tensors:
            out += [text(name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t, offset)]
        head = b"".join(out)
        return head + b"\0" * (-len(head) % 32) + self.data

    def set(self, name, t, v):
        self.keys = [k for k in self.keys if k[0] != name] + [[name, t, v]]

    def drop(self, name):
        self.keys = [k for k in self.keys if k[0] != name]


class Runner:
    def __init__(self, heddle):
        self.heddle, self.dir = heddle, tempfile.mkdtemp(prefix="heddle-hostile-")
        self.findings, self.runs, self.results = [], 0, collections.Counter()

    def run(self, what, args, data=None, quiet_failure=False, **kw):
        self.runs += 1
        kw.setdefault("stdin", subprocess.DEVNULL)
        try:
            p = subprocess.run([self.heddle, *args], stdout=kw.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                               timeout=60, **kw)
        except subprocess.TimeoutExpired:
            self.finding(what, args, "no end within 60 s", data)
            return None
        out = (p.stdout or b"") + p.stderr
        self.results[p.returncode] += 1
        if p.returncode not in (0, 1, 64) or BAD.search(out):
            self.finding(what, args, f"status {p.returncode}: {out[-3000:].decode(errors='replace')}", data)
        elif p.returncode and not p.stderr.strip() and b'"error"' not in out and not quiet_failure:
            self.finding(what, args, f"status {p.returncode} without a message", data)
        return p

    def finding(self, what, args, why, data):
        self.findings.append(what)
        print(f"FINDING {what}: heddle {' '.join(repr(a[:200]) for a in args)}: {why}", flush=True)
        if data is not None:
            with open(os.path.join(self.dir, f"find-{len(self.findings)}"), "wb") as f:
                f.write(data)

    def model(self, what, data, deep=True):
        """Inspect it, and generate with it (enough positions for windows)."""
        path = os.path.join(self.dir, "model.gguf")
        with open(path, "wb") as f:
            f.write(data)
        self.run(what, ["inspect", path], data)
        if deep:
            self.run(what, ["generate", path, "--prompt", "ab cd <s> é", "-n", "12", "--seed", "1", "--threads", "1",
                            "--kv-budget", "16M"], data)


def odd_keys(r, paths):
    """One key of a valid file at a time gets each odd value; then it is missing; then it has another type."""
    ints = [0, 1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 256, 257, 512, 513, 1024, 65535,
            1 << 20, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    floats = [0.0, -1.0, 1e-45, 1e-30, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 1.0]
    for path in paths:
        plain = File(path)
        arch = next(v for k, _, v in plain.keys if k == b"general.architecture")
        names = [(k, t) for k, t, _ in plain.keys if t in (4, 5, 6, 7)]
        more = [b".attention.key_length", b".attention.value_length", b".attention.sliding_window",
                b".attention.sliding_window_pattern",
                b".vocab_size", b".rope.scaling.original_context_length", b".expert_count", b".rope.dimension_count"]
        names += [(arch + k, 4) for k in more if arch + k not in dict(names)]
        names += [(arch + k, 6) for k in (b".rope.scaling.factor", b".attention.scale", b".logit_scale",
                                          b".final_logit_softcapping", b".attn_logit_softcapping")]
        for name, t in names:
            values = floats if t == 6 else ints
            for v in values if path == paths[0] else r.rng.sample(values, 6):
                if t in (5, 7) and v > 127:
                    continue
                f = File(path)
                f.set(name, t, v)
                r.model(f"{os.path.basename(path)} {name.decode()} = {v}", f.bytes())
            others = [(8, b"x"), (9, (4, [])), (9, (4, [1, 2, 3])), (9, (4, [4] * 2)), (9, (8, [b"a"])), (11, -1),
                      (10, 1 << 63), (12, 1e300), (7, 1)]
            for t2, v in others if path == paths[0] else r.rng.sample(others, 2):
                f = File(path)
                f.set(name, t2, v)
                r.model(f"{os.path.basename(path)} {name.decode()} type {t2} {v}", f.bytes())
        for name, _, _ in plain.keys:
            f = File(path)
            f.drop(name)
            r.model(f"{os.path.basename(path)} without {name.decode()}", f.bytes())
    tok = [(b"tokenizer.ggml.tokens", 9, (8, [])), (b"tokenizer.ggml.tokens", 9, (8, [b"a"] * 320)),
           (b"tokenizer.ggml.tokens", 9, (8, [b""] * 320)),
           (b"tokenizer.ggml.tokens", 9, (8, [bytes([i]) for i in range(100)])),
           (b"tokenizer.ggml.tokens", 9, (8, [b"t%d" % i for i in range(100000)])),
           (b"tokenizer.ggml.tokens", 9, (4, [1] * 320)), (b"tokenizer.ggml.merges", 9, (8, [b"a"])),
           (b"tokenizer.ggml.merges", 9, (8, [b"a b c", b" ", b"", b"zz yy"])),
           (b"tokenizer.ggml.token_type", 9, (5, [])), (b"tokenizer.ggml.token_type", 9, (5, [99] * 320)),
           (b"tokenizer.ggml.token_type", 9, (5, [-1] * 320)),
           (b"tokenizer.ggml.token_type", 9, (5, [6] * 320)), (b"tokenizer.ggml.token_type", 9, (5, [4] * 320)),
           (b"tokenizer.ggml.token_type", 9, (5, [3] * 320)),
           (b"tokenizer.ggml.scores", 9, (6, [float("nan")] * 320)), (b"tokenizer.ggml.model", 8, b"llama"),
           (b"tokenizer.ggml.model", 8, b"bert"),
           (b"tokenizer.ggml.model", 8, b"t5"), (b"tokenizer.ggml.model", 8, b"no_vocab"),
           (b"tokenizer.ggml.model", 8, b""), (b"tokenizer.ggml.pre", 8, b"\xff" * 500),
           (b"tokenizer.ggml.pre", 8, b""), (b"tokenizer.chat_template", 8, b"{% for x in y"),
           (b"tokenizer.chat_template", 8, b"{{" * 5000), (b"tokenizer.chat_template", 8, b"\0\xff"),
           (b"general.architecture", 8, b""), (b"general.architecture", 8, b"%s%n" * 100),
           (b"general.name", 8, b"\x1b[31m\0\xff" * 50), (b"general.alignment", 4, 0),
           (b"general.alignment", 4, 3), (b"general.alignment", 4, 1 << 31), (b"split.count", 2, 9),
           (b"split.no", 2, 65535)]
    for name, t, v in tok:
        f = File(paths[0])
        f.set(name, t, v)
        r.model(f"{name.decode()} = {str(v)[:40]}", f.bytes())
    for model in (b"llama", b"bert"):  # other vocabularies with and without scores
        for scores in ([float("nan")] * 320, [0.0] * 320, [float("-inf")] * 320, [1.0] * 5):
            f = File(paths[0])
            f.set(b"tokenizer.ggml.model", 8, model)
            f.set(b"tokenizer.ggml.scores", 9, (6, scores))
            r.model(f"{model.decode()} scores {scores[0]}", f.bytes())


def odd_tensors(r, paths):
    for path in paths:
        base = os.path.basename(path)
        for i, (name, dims, t, _) in enumerate(File(path).tensors):
            label = f"{base} {name.decode()}"
            changes = {"missing": lambda x, i=i: x.tensors.pop(i),
                       "twice": lambda x, i=i: x.tensors.append(list(x.tensors[i]))}
            for t2 in (0, 1, 2, 8, 12, 14, 24, 26, 27, 28, 30, 39, 4, 99, 1 << 31):
                changes[f"type {t2}"] = lambda x, i=i, t2=t2: x.tensors[i].__setitem__(2, t2)
            for d in ([], [0], [1], dims[::-1] + [1], dims + [1], dims + [2], [dims[0] * 2] + dims[1:],
                      [dims[0] // 2] + dims[1:], dims[:-1] + [dims[-1] - 1],
                      dims[:-1] + [dims[-1] // 2],
                      dims[:-1] + [1 << 62], [1 << 40, 1 << 40], [dims[0], 0], [1 << 63], [3, 1, 1, 1, 1]):
                changes[f"shape {d}"] = lambda x, i=i, d=d: x.tensors[i].__setitem__(1, d)
            for o in (1, 16, 32, 1 << 40, (1 << 64) - 32, len(File(path).data)):
                changes[f"offset {o}"] = lambda x, i=i, o=o: x.tensors[i].__setitem__(3, o)
            if len(dims) == 1 and i > 12 or i > 24:  # the later layers are like the first
                changes = dict(r.rng.sample(sorted(changes.items()), 4))
            for what, change in changes.items():
                f = File(path)
                change(f)
                r.model(f"{label} {what}", f.bytes())
        words = {"NaN": b"\0\0\xc0\x7f", "infinite": b"\0\0\x80\x7f", "huge": b"\0\0\x7f\x7f",
                 "zero": b"\0\0\0\0", "ones": b"\xff\xff\xff\xff"}
        for what, word in words.items():
            f = File(path)
            f.data = word * (len(f.data) // 4)
            r.model(f"{base} all weights {what}", f.bytes())
            for name, dims, t, offset in r.rng.sample(f.tensors, 3):
                g = File(path)
                g.data = g.data[:offset] + word * 16 + g.data[offset + 64:]
                r.model(f"{base} {name.decode()} some {what}", g.bytes())


def random_bytes(r, paths, n):
    for k in range(n):
        path = r.rng.choice(paths)
        f = File(path)
        kind = r.rng.randrange(4)
        if kind == 0:  # bytes of the head
            data = bytearray(f.raw)
            for _ in range(r.rng.choice([1, 1, 2, 8])):
                data[r.rng.randrange(f.head)] = r.rng.choice([0, 1, 0x7f, 0x80, 0xff, r.rng.randrange(256)])
        elif kind == 1:  # a word of the head
            data = bytearray(f.raw)
            at = r.rng.randrange(f.head - 8)
            size = r.rng.choice([2, 4, 8])
            data[at:at + size] = struct.pack("<Q", r.rng.choice([0, 1, 2, 255, 1 << 16, 1 << 31, (1 << 32) - 1,
                                                                 1 << 62, (1 << 64) - 1]))[:size]
        elif kind == 2:  # a cut, or a lost or doubled stretch
            a, b = sorted(r.rng.randrange(len(f.raw)) for _ in range(2))
            data = r.rng.choice([f.raw[:a], f.raw[:a] + f.raw[b:], f.raw[:b] + f.raw[a:]])
        else:  # a key or a tensor field
            if r.rng.random() < 0.5:
                key = r.rng.choice(f.keys)
                key[1:] = r.rng.choice(File(r.rng.choice(paths)).keys)[1:]
            else:
                a, b = r.rng.choice(f.tensors), r.rng.choice(f.tensors)
                field = r.rng.randrange(4)
                a[field] = b[field]
            data = f.bytes()
        r.model(f"mutation {k} kind {kind} of {os.path.basename(path)}", bytes(data))


def scripts(r):
    good = {"vocab": ["</s>", "X", {"hex": "ff"}], "special": {"bos": 1, "eos": [0]}, "context": 100,
            "step_delay_ms": 0, "token_delay_ms": 0,
            "rules": [{"match": "run", "emit": [1, 2], "then": "loop", "top": [[[1, 2.0], [0, 1.0]]]}],
            "default": {"emit": [1], "then": "eos"}}
    values = [None, True, 0, 1, -1, 3, 1 << 31, 1 << 32, 1 << 62, -(1 << 63), 1e300, 0.5, "", "x", "\0", [], [[]],
              [None], [-1], [99], [1 << 40], {}, {"hex": "f"}, {"hex": ""},
              ["a"] * 3, [""], [{"hex": "zz"}], "loop", "fail", [[[1, 1e300]]], [[[99, 1]]], [[[1]]], [[1, 2]],
              [{"match": "run"}], [{"emit": [1] * 1000}]]

    def places(v, path=()):
        yield path
        for k, x in v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ():
            yield from places(x, (*path, k))
    path = os.path.join(r.dir, "script.json")

    def go(what, text):
        with open(path, "wb") as f:
            f.write(text)
        r.run(what, ["generate", "script:" + path, "--prompt", "run XX", "-n", "5"], text)
    for place in places(good):
        for v in values + ["drop"]:
            doc = json.loads(json.dumps(good))
            if not place:
                doc = v
            else:
                at = doc
                for k in place[:-1]:
                    at = at[k]
                if v == "drop":
                    at.pop(place[-1])
                else:
                    at[place[-1]] = v
            go(f"script {place} = {str(v)[:40]}", json.dumps(doc).encode())
    for text in (b"", b"\0", b"{", b"[" * 100000, b'{"vocab":["\xff"]}', json.dumps(good).encode()[:-5],
                 b'{"vocab":[' + b",".join(b'"a%d"' % i for i in range(200000)) + b'],"default":{"emit":[1]}}'):
        go(f"script {text[:20]!r}", text)


def batches(r, model):
    """Lines of a batch file: each must be answered by one line, whatever is in it."""
    path = os.path.join(r.dir, "batch.jsonl")
    fields = attacks.FIELDS + ["ids", "schema", "grammar", "sample_index", "dry_range"]
    lines = []
    for field in fields:
        for value in attacks.VALUES:
            have = {"prompt": '"ab"', "max_tokens": "3", field: value}
            if field == "ids":
                del have["prompt"]
            lines.append("{" + ",".join(f'"{k}":{v}' for k, v in have.items()) + "}")
    lines += ["", "  ", "null", "[]", "{", '{"prompt":["a"]}', '{"ids":[],"max_tokens":1}',
              '{"prompt":"a","prompt":"b"}', "\x7f", "x" * 100000]
    r.rng.shuffle(lines)
    for at in range(0, len(lines), 200):
        part = [x.encode("utf-8", "surrogateescape") for x in lines[at:at + 200]]
        with open(path, "wb") as f:
            f.write(b"\n".join(part))
        args = ["generate", model, "--batch-file", path, "-n", "3", "--json", "--kv-budget", "16M"]
        p = r.run("batch", args, b"\n".join(part))
        answers, asked = p.stdout.count(b"\n") if p else 0, sum(1 for x in part if x.strip())
        if p and answers != asked:
            r.finding("batch", args, f"{answers} answers to {asked} lines", b"\n".join(part))


def cli(r, model):
    junk, messages, text = (os.path.join(r.dir, n) for n in ("junk", "messages.json", "text"))
    with open(junk, "wb") as f:
        f.write(r.rng.randbytes(5000))
    with open(messages, "w") as f:
        f.write('[{"role":"user","content":"a"}]')
    with open(text, "w") as f:
        f.write("ab cd " * 20)
    empty = os.path.join(r.dir, "empty")
    open(empty, "w").close()
    # What each command needs besides a model, to do something.
    needs = {"inspect": [], "generate": ["--prompt", "a", "-n", "2"], "tokenize": ["--text", "a"],
             "detokenize": ["--ids", "1"], "logits": ["--text", "a"], "embed": ["--text", "a"], "perplexity": [text],
             "bench": ["-p", "8", "-n", "2", "-b", "1"], "render": ["--messages", messages]}
    files = ["", "/no/such", "/", r.dir, "/dev/null", "/dev/zero", "/dev/full", junk, empty, "script:", "script:/dev/null",
             "script:" + junk, "script:/", "script:/dev/zero", "x" * 5000, "-", "--", "/proc/self/mem"]
    options = ["--threads", "--ctx", "--kv-budget", "--step-tokens", "--max-rows", "--page-tokens", "--kv-type",
               "--isa", "--state-dir", "-n", "--seed", "--temperature", "--top-p", "--top-k", "--min-p", "--typical-p",
               "--repetition-penalty", "--presence-penalty", "--frequency-penalty", "--prompt", "--prompt-file", "--text",
               "--file", "--ids", "--ids-file", "--jsonl", "--batch-file", "--stop", "--logprobs", "--pooling", "--trace",
               "--out", "--depth", "-b", "--template", "--messages", "--tools", "--input", "--now", "--max-queued",
               "--port", "--host", "--max-body", "--max-connections", "--api-key", "--api-key-file", "--comment-interval",
               "--drain-timeout", "--stuck-timeout", "--default-max-tokens", "--alias", "--json", "--url", "--no-such"]
    values = ["", "0", "-1", "1", "999999999999999999999", "4294967295", "18446744073709551615", "1e308", "nan", "inf",
              "0x10", "1G", "99999999G", " 5", "5 ", "/dev/null", junk, "\xff\xfe"]
    for c in [*needs, "serve", "run", "doctor", "nonsense", ""]:
        if c != "doctor":
            r.run("no arguments", [c])
        r.run("help", [c, "--help"])
        for f in files:
            if c == "doctor" or (c == "serve" and not f):
                continue
            r.run("odd file", [c, f, *needs.get(c, [])], cwd=r.dir)
    for c in "tokenize", "generate", "render":
        for f in files:
            r.run("odd lines", [c, *([] if c == "render" else [model]), "--batch-file" if c == "generate" else "--jsonl", f])
    known = set()
    for c, need in [*needs.items(), ("serve", None), ("doctor", None)]:
        for o in options:
            for v in values if need is not None else values[:8] + ["nan"]:
                # Without a model serve ends by itself.  In a directory of ours: some values are names of files to write.
                args = [c, *([model, *need] if need is not None else ["/no/such", "--port", "0"] if c == "serve" else []), o, v]
                p = r.run("odd option", args, cwd=r.dir, quiet_failure=c == "doctor")  # its report is the message
                if p and b"unknown option" not in p.stderr:
                    known.add(o)
    for o in set(options) - known - {"--no-such"}:
        r.finding("odd option", [o], "no command knows this option: nothing was tested", None)
    outputs = [["inspect", model], ["inspect", model, "--json"], ["generate", model, "--prompt", "a", "-n", "30"],
               ["generate", model, "--prompt", "a", "-n", "30", "--json"], ["tokenize", model, "--text", "hello"],
               ["detokenize", model, "--ids", "1,2"], ["render", "--template", text, "--messages", messages],
               ["logits", model, "--ids", "1,2,3"], ["logits", model, "--text", "abc"],
               ["embed", model, "--text", "abc"], ["embed", model, "--text", "abc", "--json"],
               ["perplexity", model, text], ["doctor"], ["--help"], ["--version"],
               ["bench", model, *needs["bench"]], ["bench", model, *needs["bench"], "--json"]]
    for args in outputs:
        p = r.run("plain", args)
        if p and p.returncode:
            r.finding("plain", args, f"status {p.returncode}: so its output is not tested below", None)
        with open("/dev/full", "wb") as full:
            p = r.run("full disk", args, stdout=full)
            if p and p.returncode == 0:
                r.finding("full disk", args, "status 0 though nothing could be written", None)
        a, b = os.pipe()
        os.close(a)
        r.runs += 1
        p = subprocess.run([r.heddle, *args], stdin=subprocess.DEVNULL, stdout=b, stderr=subprocess.PIPE, timeout=60)
        os.close(b)
        if p.returncode not in (0, 1, 64, -13) or BAD.search(p.stderr):  # 13: SIGPIPE, as any filter
            r.finding("closed pipe", args, f"status {p.returncode} {p.stderr[-500:]!r}", None)
        r.run("closed streams", args, preexec_fn=lambda: (os.close(0), os.close(1)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("heddle")
    p.add_argument("models")
    p.add_argument("--mutations", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    a = p.parse_args()
    r = Runner(os.path.abspath(a.heddle))
    r.rng = random.Random(a.seed)
    names = ["llama", "qwen3", "gemma3"]
    paths = [os.path.abspath(os.path.join(a.models, n + ".gguf")) for n in names]
    blocks = os.path.abspath(os.path.join(a.models, "q4_k.gguf"))
    every = [*paths, *glob.glob(os.path.join(a.models, "q*_*.gguf"))]
    parts = {"keys": lambda: odd_keys(r, paths), "tensors": lambda: odd_tensors(r, [*paths, blocks]),
             "bytes": lambda: random_bytes(r, every, a.mutations), "scripts": lambda: scripts(r),
             "batches": lambda: batches(r, paths[0]), "cli": lambda: cli(r, paths[0])}
    for name, part in parts.items():
        if a.only in ("", name):
            before = r.runs, len(r.findings)
            part()
            print(f"{name}: {r.runs - before[0]} runs, {len(r.findings) - before[1]} findings", flush=True)
    print(f"{r.runs} runs, statuses {dict(sorted(r.results.items()))}, {len(r.findings)} findings"
          + (f", files in {r.dir}" if r.findings else ""))
    sys.exit(1 if r.findings else 0)


if __name__ == "__main__":
    main()
