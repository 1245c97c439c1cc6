#!/usr/bin/env python3
"""Writes src/text/jinja_case_table.h: characters whose upper or title case is more than one character (Unicode's
SpecialCasing, as Python's str.upper and str.title apply it; lower case has one such character, handled in code)."""
import sys


def c_text(s):
    return "".join("\\x%02x" % b for b in s.encode())


rows = []
for cp in range(0x110000):
    c = chr(cp)
    if 0xD800 <= cp < 0xE000:
        continue
    if len(c.upper()) > 1 or len(c.title()) > 1:
        rows.append('    {0x%04x, "%s", "%s"},' % (cp, c_text(c.upper()), c_text(c.title())))
print("/* jinja_case_table.h - made by scripts/gen_case.py: code point, upper case, title case. */")
print("/* clang-format off */")
print("static const struct {\n    uint32_t cp;\n    const char *upper, *title;\n} CASE_SPECIAL[] = {")
print("\n".join(rows))
print("};\n/* clang-format on */")
sys.stderr.write("%d rows\n" % len(rows))
