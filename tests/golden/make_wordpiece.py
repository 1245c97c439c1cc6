#!/usr/bin/env python3
"""make_wordpiece.py - ids that the `tokenizers` library gives for an uncased BERT vocabulary, for test_tokenizer_data.c.

usage: make_wordpiece.py bert-bge.gguf > wordpiece.jsonl          needs: pip install tokenizers gguf

The vocabulary comes from the GGUF file, the normaliser, pre-tokenizer and model are the library's own for BERT.
"""
import json
import sys
import unicodedata

from gguf import GGUFReader
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

TEXTS = [
    "Kantō lǜshi Ångström café", "Việt Nam, Thừa Thiên Huế", "한국어 문장", "ＦＵＬＬ　ｗｉｄｔｈ １２３", "naïve façade über coöperate", "İstanbul ISTANBUL ıI",
    "Hello, world! It's 3.14159 — isn't it?", "日本語のテキストと漢字", "中文，标点。", "Ελληνικά ΆΈΉ ς Σ", "Русский Ёлка Й", "עברית שָׁלוֹם", "العَرَبِيَّة",
    "हिन्दी ज़ड़", "ไทย ภาษา", "a\u200bb\u00adc\x00d\x01e\ufeff", "tab\tnew\nline\r\nnbsp\u00a0em\u2003ls\u2028ff\x0cvt\x0bnel\x85", "$100 + 20% = ~`^|_<>", "[CLS] [SEP] [MASK] [UNK]",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "a" * 100, "a" * 101, "é" * 100, "é" * 101, "😀 emoji 👨‍👩‍👧 🇮🇹", "¿Qué? ¡Sí! «x» “y” ‘z’ …",
    "豈更車 U+F900", "𠀀𪛖 plane 2", "ﬁ ﬂ ½ ² ℵ Ω Å", "", " ", "  x  ", "Aͅ ᾳ", "ẞ ß ſ", "e\u0301\u0308\u0323", "\ufffd\ue000 x",
]


def main():
    r = GGUFReader(sys.argv[1])
    tokens, types = (r.fields["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type"))
    vocab = {t if y == 3 else t[1:] if t.startswith("\u2581") else "##" + t: i for i, (t, y) in enumerate(zip(tokens, types))}
    assert len(vocab) == len(tokens)
    t = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for text in dict.fromkeys(f(s) for s in TEXTS for f in (str, lambda s: unicodedata.normalize("NFC", s), lambda s: unicodedata.normalize("NFD", s))):
        print(json.dumps({"text": text, "ids": t.encode(text, add_special_tokens=False).ids}, separators=(",", ":")))


if __name__ == "__main__":
    main()
