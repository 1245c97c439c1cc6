#!/usr/bin/env python3
"""make_pretok.py - where the `tokenizers` library cuts texts before byte-pair merging, for test_pretok.c.

usage: make_pretok.py [-n 60] [--seed 7] > pretok.jsonl          needs: pip install tokenizers

Each pre-tokenizer is written down here as the models' own tokenizer.json files have it.  Output: a line {"texts": [...]},
then a line {"pre": NAME, "cuts": [[bytes of each piece] per text]} for each name.  "default" has no such file; it is the
four-stage split that llama.cpp applies to files without a name.
The blocks are old ones, so that tables of different age agree on them (pt.Punctuation's are of Unicode 8).
"""
import argparse
import json
import random
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers as pt

C1 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = C1 + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = C1 + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
QWEN35 = C1 + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
U, D = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = rf"[^\r\n\p{{L}}\p{{N}}]?{U}*{D}+{C1}?|[^\r\n\p{{L}}\p{{N}}]?{U}+{D}*{C1}?|\p{{N}}{{1,3}}|" + CASED
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{U}*{D}+|[^\r\n\p{{L}}\p{{N}}]?{U}+{D}*|\p{{N}}|" + CASED
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# deepseek-llm lists its letters; as code points, since some of them change when a text is normalised.
LETTERS = """41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1
3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a
1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4
1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128
212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d
a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3
104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943""".split()
LETTERS = "".join("-".join(chr(int(x, 16)) for x in r.split("-")) for r in LETTERS)
SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DS3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
       r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def splits(*patterns):
    return pt.Sequence([pt.Split(Regex(p), "isolated") for p in patterns] +
                       [pt.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(*first):
    return pt.Sequence([*first, pt.ByteLevel(add_prefix_space=False, use_regex=True)])


KINDS = {
    "gpt-2": gpt2(),
    "smollm": gpt2(pt.Digits(individual_digits=True)),
    "falcon": pt.Sequence([pt.Punctuation("contiguous"), pt.ByteLevel(add_prefix_space=False, use_regex=True),
                           pt.Digits(individual_digits=False), pt.Split(Regex("[0-9][0-9][0-9]"), "isolated")]),
    "llama-bpe": splits(LLAMA3),
    "qwen2": splits(QWEN2),
    "qwen35": splits(QWEN35),
    "bailingmoe": splits(BAILING),
    "gpt-4o": splits(GPT4O),
    "tekken": splits(TEKKEN),
    "deepseek-llm": splits(r"[\r\n]", rf"\s?[{LETTERS}]+", rf"\s?[{SIGNS}]+", r"\s+$", WIDE, r"\p{N}+"),
    "deepseek-coder": splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", WIDE, r"\p{N}"),
    "deepseek-v3": splits(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DS3),
    "default": splits(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}

FIXED = [
    "", " ", "  ", "a", "\n", "\n\n", " \n", "\n ", "\r\n\r\n", " \t\n\x0b\x0c\r ", "a  b   c\n\n  d", "   leading", "trailing   ",
    "Hello world! Caf\u00e9 d\u00e9j\u00e0 vu \u2014 123 \U0001f60a", " Caf\u00e9", "I'm you're we'LL DON'T it's 's 'S 'ſ '\u017fx ''s", "'re'RE'Ve'vE'lL'd",
    "1234567 12 3.14 1,000,000 \u0661\u0662\u0663\u0664 \u00bd\u00b2\u2167\u2460", "x1y22z333w4444", "a\u0301e\u0301 \u0301x !\u0301 1\u0301 \u0301\u0301",
    "HTTPServer XMLHttpRequest aBcD ABC abC ÀÉÎõü ǅungla ʰʱX", "日本語テキスト 中文，标点。한국어 ไทย हिन्दी", "\u3000全角　スペース\u3000",
    "path/to/file.c // comment\n/* x */\n\n", "!!!\n???\r\n...\n", "foo(bar)[baz]{qux}<a href=\"x\">&amp;</a>", "$100 + 20% = ~`^|_",
    "a\u00a0b\u2003c\u2028d\u2029e\u0085f\u200bg\ufeffh", "\x00\x01\x02abc\x7f \x1b[0m", "\u200d\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1ee\U0001f1f9",
    "____----====####", "ab\u0000cd", " \u0301", "\u0301 ", "\u0e01\u0e33 \u0e33", "x\u200dy", "\ue000\ue001 \U000f0000", "9" * 50, " " * 50 + "x", "\n" * 20 + "x",
    "a" * 40, "A" * 40 + "b", "Aa" * 20, "'" * 9, "!a!b ?c", "#include <stdio.h>\n\tint main(void)\r\n{\n\t\treturn 0;\n}\n", "''''''```````\"\"\"\"......!!!!!!??????",
]
SPACES = [" "] * 10 + ["\n"] * 5 + ["\t", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"]
OTHER = ["'s", "'S", "'ll", "'LL", "'Ve", "'\u017f", "'d", "'M", "'", "/", "//", "...", "123", "4", "12345", "\u00b2", "\u0301", "\u0308\u0323", "\u20dd", "\u200b",
         "\u200d", "\U0001f600", "_", "$", "=", "<", "\u2019s", "\u3002", "\uff01", "\x01", "\ue010", "\u0903", "\u0345"]
BLOCKS = [(0x21, 0x7e)] * 6 + [(0xa1, 0x24f)] * 3 + [(0x250, 0x36f), (0x370, 0x3ff), (0x400, 0x52f), (0x531, 0x5f4), (0x600, 0x6ff),
          (0x900, 0x97f), (0xe01, 0xe5b), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x13a0, 0x13fd), (0x1d00, 0x1dbf), (0x1e00, 0x1fff), (0x2000, 0x206f),
          (0x2070, 0x20bf), (0x2100, 0x218b), (0x2190, 0x22ff), (0x2460, 0x24ff), (0x2c00, 0x2dff), (0x3000, 0x30ff), (0x3400, 0x3500), (0x4e00, 0x9fa5),
          (0xa640, 0xa7ff), (0xac00, 0xd7a3), (0xfb00, 0xfbff), (0xff01, 0xffee), (0x10400, 0x1044f), (0x1d400, 0x1d7ff), (0x1f300, 0x1f5ff)]


def pool(lo, hi):
    return [chr(c) for c in range(lo, hi + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def texts(n, seed):
    r = random.Random(seed)
    pools = [pool(*b) for b in BLOCKS]

    def piece():
        k = r.random()
        if k < 0.35:
            return r.choice(SPACES) * r.choice([1, 1, 1, 2, 3, 7])
        if k < 0.6:
            return r.choice(OTHER)
        p = r.choice(pools)
        return "".join(r.choice(p) for _ in range(r.randint(1, 5)))

    return FIXED + ["".join(piece() for _ in range(r.randint(1, 14))) for _ in range(n)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("-n", type=int, default=60)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()
    all_texts = texts(args.n, args.seed)
    print(json.dumps({"texts": all_texts}))
    for name, kind in KINDS.items():
        # A piece is written in the byte alphabet: one letter for each byte.
        cuts = [[len(p) for p, _ in kind.pre_tokenize_str(s)] for s in all_texts]
        for s, c in zip(all_texts, cuts):
            if sum(c) != len(s.encode()):
                sys.exit(f"{name}: the pieces of {s!r} do not add up")
        print(json.dumps({"pre": name, "cuts": cuts}, separators=(",", ":")))


if __name__ == "__main__":
    main()
