#!/usr/bin/env python3
"""tokenizer_random.py - random strings through heddle's tokenizer and through Hugging Face tokenizers / SentencePiece.

usage: tokenizer_random.py MODEL.gguf [-n 10000] [--seed 1] [--peer] [--peer-only] [--no-nfc] [--show 10]
       tokenizer_random.py MODEL.gguf --check EXPECTED.jsonl STRINGS.jsonl      (is the reference itself right?)

The reference is built from the file's own vocabulary, merges, scores and token types: byte-level BPE by the `tokenizers`
library with the pre-tokenizer that the file's `pre` names, SentencePiece BPE by the `sentencepiece` library.  Control
tokens in text are not recognised, user-defined ones are, no BOS or EOS is added: what `heddle tokenize MODEL --jsonl -`
does.  Strings hold code points assigned up to Unicode 14 in many scripts, spaces and line ends of every kind, digits,
contractions, look-alikes and pieces of special tokens, combining marks, joiners and emoji sequences.
Families whose own tokenizer normalises to NFC (qwen, mpt) get NFC here, unless --no-nfc.
--peer also asks llama.cpp's tokenizer, which simplifies some patterns: its differences are counted, not judged.
Exit status 1 if any string differs; strings with U+2581 in files with user-defined space runs are counted apart.
"""
import argparse
import json
import random
import re
import sys
import unicodedata

import peer as P

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join(rf"[^\r\n\p{{L}}\p{{N}}]?{w}{CONTRACTIONS}?" for w in (f"{UPPER}*{LOWER}+", f"{UPPER}+{LOWER}*"))
GPT4O = O200K + r"|\p{N}{1,3}" + TAIL
TEKKEN = O200K.replace(CONTRACTIONS + "?", "") + r"|\p{N}" + TAIL
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"]
GPT2 = ["gpt-2", "olmo", "mpt", "modern-bert", "phi-2", "exaone4", "jais"]
DIGITS_GPT2 = ["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"]
SPLITS = {"llama-bpe": [LLAMA3], "llama3": [LLAMA3], "llama-v3": [LLAMA3], "dbrx": [LLAMA3], "smaug-bpe": [LLAMA3],
          "lfm2": [LLAMA3], "qwen2": [QWEN2], "stablelm2": [QWEN2], "deepseek-r1-qwen": [QWEN2], "qwen35": [QWEN35],
          "gpt-4o": [GPT4O], "o200k": [GPT4O], "tekken": [TEKKEN], "deepseek-v3": DEEPSEEK3,
          "deepseek-coder": DEEPSEEK_CODER}
IGNORE_MERGES = ["llama-bpe", "llama3", "llama-v3", "lfm2", "tekken"]
NFC = ["qwen2", "qwen35", "mpt", "deepseek-r1-qwen"]


class File:
    def __init__(self, path):
        from gguf import GGUFReader

        r = GGUFReader(path)
        get = lambda k, d=None: r.fields["tokenizer.ggml." + k].contents() if "tokenizer.ggml." + k in r.fields else d
        self.model, self.pre = get("model"), get("pre", "default")
        self.tokens, self.types = get("tokens"), get("token_type")
        self.scores, self.merges = get("scores"), get("merges")
        self.unk, self.bos, self.eos = (get(k + "_token_id", -1) for k in ("unknown", "bos", "eos"))
        self.space_prefix = get("add_space_prefix", True)
        # old converters filled padded vocabularies with user-defined [PADn]; they are no text
        self.user = [t for t, y in zip(self.tokens, self.types) if y == 4 and not re.fullmatch(r"\[PAD\d+\]", t)]
        self.control = [t for t, y in zip(self.tokens, self.types) if y == 3]


def bpe_reference(f, nfc):
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers as pt

    merges = []
    for m in f.merges:
        at = m.index(" ", 1)
        merges.append((m[:at], m[at + 1:]))
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(f.tokens)}, merges, ignore_merges=f.pre in IGNORE_MERGES))
    if f.pre in GPT2:
        t.pre_tokenizer = pt.ByteLevel(add_prefix_space=False, use_regex=True)
    elif f.pre in DIGITS_GPT2:
        t.pre_tokenizer = pt.Sequence([pt.Digits(individual_digits=True),
                                       pt.ByteLevel(add_prefix_space=False, use_regex=True)])
    elif f.pre in SPLITS:
        t.pre_tokenizer = pt.Sequence([pt.Split(Regex(p), "isolated") for p in SPLITS[f.pre]] +
                                      [pt.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        raise SystemExit(f"no reference here for pre {f.pre}")
    if nfc and f.pre in NFC:
        t.normalizer = normalizers.NFC()
    t.add_tokens([AddedToken(s, normalized=False, special=False) for s in f.user])
    return lambda strings: [e.ids for e in t.encode_batch(strings, add_special_tokens=False)]


def spm_reference(f):
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    m = pb.ModelProto()
    unk = f.unk if f.unk >= 0 else 0
    for i, (s, score, kind) in enumerate(zip(f.tokens, f.scores, f.types)):
        p = m.pieces.add()
        # conversion to GGUF writes user-defined runs of U+2581 as spaces
        p.piece, p.score = s.replace(" ", "\u2581") if kind == 4 else s, score
        # a model has one unknown token; files mark others as unknown to keep them out of texts, like controls
        p.type = 2 if i == unk else 3 if kind == 2 else kind
    m.trainer_spec.model_type = pb.TrainerSpec.BPE
    m.trainer_spec.byte_fallback = any(k == 6 for k in f.types)
    m.trainer_spec.unk_id, m.trainer_spec.unk_piece = unk, f.tokens[unk]
    m.trainer_spec.bos_id, m.trainer_spec.eos_id, m.trainer_spec.pad_id = f.bos, f.eos, -1
    m.normalizer_spec.name = "identity"
    m.normalizer_spec.add_dummy_prefix = bool(f.space_prefix)
    m.normalizer_spec.remove_extra_whitespaces = False
    m.normalizer_spec.escape_whitespaces = True
    sp = sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())
    return lambda strings: [sp.encode(s) for s in strings]


def reference(f, nfc=True):
    if f.model == "gpt2":
        return bpe_reference(f, nfc)
    if f.model == "llama":
        return spm_reference(f)
    raise SystemExit(f"no reference here for tokenizer model {f.model}")


SCRIPTS = [(0x20, 0x7E), (0xA1, 0x24F), (0x250, 0x2FF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58A), (0x591, 0x5F4),
           (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7B1), (0x900, 0x97F), (0x980, 0x9FE), (0xB80, 0xBFA), (0xC80, 0xCF2),
           (0xE01, 0xE5B), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C),
           (0x13A0, 0x13FD), (0x1780, 0x17F9), (0x1800, 0x18AA), (0x1D00, 0x1DBF), (0x1E00, 0x1FFE), (0x2000, 0x206F),
           (0x2070, 0x209C), (0x20A0, 0x20C0), (0x2100, 0x218B), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF),
           (0x2C80, 0x2CFF), (0x2DE0, 0x2DFF), (0x2E80, 0x2FD5), (0x3000, 0x303F), (0x3041, 0x309F), (0x30A0, 0x30FF),
           (0x3131, 0x318E), (0x3200, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4C6), (0xA640, 0xA69F),
           (0xA720, 0xA7CA), (0xAC00, 0xD7A3), (0xE000, 0xE020), (0xF900, 0xFAD9), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF),
           (0xFE00, 0xFE0F), (0xFE10, 0xFE6B), (0xFF01, 0xFFEE), (0x10000, 0x100FA), (0x10330, 0x1034A), (0x10400, 0x1049D),
           (0x11000, 0x1106F), (0x12000, 0x12399), (0x13000, 0x1342E), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F),
           (0x1F000, 0x1FAF6), (0x20000, 0x2A6DF), (0x30000, 0x3134A), (0xE0020, 0xE007F)]
SPACES = [" "] * 12 + ["\n"] * 6 + ["\t", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003", "\u2009",
                                    "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e"]
DIGITS = "0123456789" * 4 + "\u0660\u0669\u06f5\u0967\u0e53\uff15\u00b2\u00bd\u2167\u2460\u3007\u4e09\U0001d7d8\u0bf0"
BITS = ["'s", "'S", "'ll", "'LL", "'Ve", "'re", "\u2019s", "'\u017f", "'d", "'m", "'T", "don't", "I'M", "''", "' s", "it's'",
        "HTTPServer", "camelCase", "snake_case", "x+=1;", "!=", "->", "//", "/*", "*/", "...", "\u2026", "```", "<!--",
        "<a href=\"/x\">", "</p>", "#include", "$100.00", "3.14e-10", "1,000,000", "127.0.0.1", "a@b.c", "\\n", "{}", "[]",
        "\u2581", "\u2581\u2581", "<0x41>", "<0xFF>", "\u0120", "\u010a", "##ing", "\x00", "\x01", "\x7f", "\u00ad", "\ufffd"]
MARKS = "\u0300\u0301\u0308\u0323\u0327\u0338\u0483\u05b0\u064b\u093c\u0e34\u1ab0\u20dd\u3099" \
        "\ufe20\ufe0f\u200d\u200c\u0345\u1100\u1161\u11a8"
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f",
         "\U0001f1ee\U0001f1f9", "1\ufe0f\u20e3",
         "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U0001f9d1\u200d\U0001f680"]


def pool(lo, hi):
    return [chr(c) for c in range(lo, hi + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def strings(f, n, seed):
    """n random strings, a pure function of the file's vocabulary and the seed."""
    r = random.Random(seed)
    scripts = [pool(*s) for s in SCRIPTS]
    special = f.control[:200] + f.user[:200] + ["<|im_start|>", "<|endoftext|>", "</s>", "<s>", "[INST]", "<bos>", "<eos>"]
    letters = [t for t in f.tokens[:20000] if t.isascii() and t.isalpha()] or ["word"]

    def word():
        k = r.random()
        if k < 0.30:
            w = r.choice(letters)
            return r.choice([w, w, w.capitalize(), w.upper()])
        s = scripts[0] if k < 0.45 else r.choice(scripts)
        return "".join(r.choice(s) for _ in range(r.randint(1, 8)))

    def piece():
        k = r.random()
        if k < 0.50:
            return word()
        if k < 0.66:
            return r.choice(SPACES) * r.choice([1, 1, 1, 2, 3, r.randint(1, 20)])
        if k < 0.74:
            return "".join(r.choice(DIGITS) for _ in range(r.randint(1, 7)))
        if k < 0.82:
            return r.choice(BITS)
        if k < 0.88:
            return r.choice(letters)[:1] + "".join(r.choice(MARKS) for _ in range(r.randint(1, 3)))
        if k < 0.93:
            return r.choice(EMOJI)
        s = r.choice(special)
        cut = r.random()
        return s if cut < 0.5 else s[:r.randint(1, len(s))] if cut < 0.8 else s.upper()

    return ["".join((" " if r.random() < 0.4 else "") + piece() for _ in range(r.randint(1, 14))) for _ in range(n)]


def judge(name, got, want, texts, ambiguous, show):
    bad = unclear = 0
    for s, a, b in zip(texts, got, want):
        if a == b:
            continue
        if ambiguous(s):
            unclear += 1
            continue
        bad += 1
        if bad <= show:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            near = slice(max(0, at - 2), at + 6)
            print(f"  {json.dumps(s)}\n    {name} {a[near]}  reference {b[near]}  (differ at {at})")
    note = f", {unclear} more are ambiguous (U+2581)" if unclear else ""
    print(f"{name}: {len(texts)} strings, {bad} differ{note}", flush=True)
    return bad


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("-n", type=int, default=10000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--show", type=int, default=10)
    ap.add_argument("--peer", action="store_true")
    ap.add_argument("--peer-only", action="store_true")
    ap.add_argument("--no-nfc", action="store_true")
    ap.add_argument("--check", nargs=2, metavar=("EXPECTED", "STRINGS"))
    args = ap.parse_args()
    f = File(args.model)
    ref = reference(f, not args.no_nfc)
    runs = any(t.strip(" \u2581") == "" for t in f.user)
    ambiguous = lambda s: runs and "\u2581" in s
    if args.check:
        by_id = {x["id"]: x["text"] for x in map(json.loads, open(args.check[1])) if "text" in x}
        rows = [x for x in map(json.loads, open(args.check[0])) if x["id"] in by_id and "ids" in x]
        texts = [by_id[x["id"]] for x in rows]
        sys.exit(judge("expected", [x["ids"] for x in rows], ref(texts), texts, ambiguous, args.show) > 0)
    texts = strings(f, args.n, args.seed)
    want = ref(texts)
    print(f"{f.model} {f.pre}: {len(f.tokens)} tokens, {sum(map(len, texts))} characters, {sum(map(len, want))} ids")
    if args.peer or args.peer_only:
        peer = P.Peer(args.model, vocab_only=True)
        judge("llama.cpp", [peer.tokenize(s, bos=False) for s in texts], want, texts, ambiguous, 3)
    if args.peer_only:
        return
    lines = "".join(json.dumps({"text": s}) + "\n" for s in texts).encode()
    answers = [json.loads(x) for x in P.heddle("tokenize", args.model, "--jsonl", "-", stdin=lines).splitlines()]
    if len(answers) != len(texts):
        sys.exit(f"heddle answered {len(answers)} lines of {len(texts)}")
    sys.exit(judge("heddle", [a.get("ids", a) for a in answers], want, texts, ambiguous, args.show) > 0)


if __name__ == "__main__":
    main()
