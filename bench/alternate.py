#!/usr/bin/env python3
"""alternate.py - one `heddle bench` against another with different options, in turns.

usage: alternate.py HEDDLE MODEL [--rounds 9] [--common "-p 0 -b 1 --depth 8192 -n 64"] -- OPTIONS-A -- OPTIONS-B

Each round runs `HEDDLE bench MODEL COMMON OPTIONS --json` once with A's options and once with B's; the order turns round
every round.  Prints for each figure both medians and B / A within a round: min, median, max.  Standard library only.
Example: alternate.py build/heddle m.gguf -- --kv-type f16 -- --kv-type q8
"""
import json
import shlex
import statistics
import subprocess
import sys


def figures(command):
    r = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    d = {f"prefill {x['tokens']}": x["tok_s"] for x in r["prefill"]}
    d.update({f"decode {x['rows']} at {x['depth']}": x["tok_s"] for x in r["decode"]})
    return d


def main():
    argv, rounds, common = sys.argv[1:], 9, "-p 0 -b 1 --depth 8192 -n 64"
    if argv.count("--") != 2 or argv.index("--") < 2:
        sys.exit(__doc__)
    first = argv.index("--")
    second = argv.index("--", first + 1)
    own, sides = argv[:first], [argv[first + 1:second], argv[second + 1:]]
    for name in ("--rounds", "--common"):
        if name in own:
            i = own.index(name)
            if name == "--rounds":
                rounds = int(own[i + 1])
            else:
                common = own[i + 1]
            del own[i:i + 2]
    heddle, model = own
    seen = [[], []]
    for i in range(rounds):
        for side in (0, 1) if i % 2 else (1, 0):
            seen[side].append(figures([heddle, "bench", model, *shlex.split(common), *sides[side], "--json"]))
    for what in seen[0][0]:
        a, b = ([r[what] for r in s] for s in seen)
        ratios = [y / x for x, y in zip(a, b)]
        print(f"{what}: {' '.join(sides[0])} {statistics.median(a):.1f} tok/s, {' '.join(sides[1])} {statistics.median(b):.1f}; "
              f"ratio {min(ratios):.3f} {statistics.median(ratios):.3f} {max(ratios):.3f}")


if __name__ == "__main__":
    main()
