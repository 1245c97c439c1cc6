#!/usr/bin/env python3
"""greedy_vs_peer.py - greedy text of heddle against llama.cpp on the same GGUF file.

usage: greedy_vs_peer.py MODEL.gguf [-n 64] [--prompts N] [--tie 0.5] [--ref OTHER.gguf] [--peer-only] [-- heddle options]

Ten prompts, n greedy tokens each: `heddle generate MODEL --ids ... -n N --json`, then the peer (1 thread, flash attention
off, f32 KV, a step for each token) reads prompt and heddle's tokens and judges each: the first token that is not the
peer's own choice is the first divergence.  Printed there: the peer's margin between its two best logits and how far
heddle's token is below the best.  Both engines round activations to 8 bits, so logits closer than --tie may swap; a
larger gap is an error and the exit status is 1.  Behind a divergence the peer goes on judging heddle's own text, so
all n tokens count.  --peer-only --batch shows the peer's own noise: it writes one step a token and judges in one batch
(SmolLM2-135M Q4_1: 7 of 593 tokens change, by up to 0.33).  --ref with dequantize.py's output judges by exact weights.
"""
import argparse
import sys

import numpy as np

import peer as P

PROMPTS = [
    "Once upon a time, there was a little girl who",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "In 1969, the first human landed on the Moon. The mission",
    "1, 2, 3, 4, 5,",
    "Water boils at 100 degrees Celsius because",
    "La ricetta della pizza margherita:",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "{\"name\": \"Alice\", \"age\": 30, \"city\":",
]


def judge(peer, ids, out, ended, batch):
    """Per token of out: (gap of that token below the peer's best, peer's margin best - second, peer's best)."""
    peer.clear()
    if batch:
        steps = [y for _, y in peer.run(ids + out, want_from=len(ids) - 1)]
    else:
        steps = [y for _, y in peer.run(ids)]
        steps += [y for k, t in enumerate(out) for _, y in peer.run([t], first=len(ids) + k)]
    rows = []
    for k, y in enumerate(steps):
        top = np.argpartition(y, -2)[-2:]
        second, best = sorted(top, key=lambda t: y[t])
        if k < len(out):
            rows.append((float(y[best] - y[out[k]]), float(y[best] - y[second]), int(best)))
        elif ended and not peer.is_eog(best):
            eog = max(float(y[t]) for t in range(len(y)) if peer.is_eog(t))
            rows.append((float(y[best]) - eog, float(y[best] - y[second]), int(best)))
    return rows


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("-n", type=int, default=64)
    ap.add_argument("--prompts", type=int, default=len(PROMPTS))
    ap.add_argument("--tie", type=float, default=0.5)
    ap.add_argument("--ref", help="the peer reads this file instead (say, an F32 copy)")
    ap.add_argument("--batch", action="store_true", help="the peer judges all tokens in one batch")
    ap.add_argument("--peer-only", action="store_true")
    args, rest = ap.parse_known_args()
    rest = [a for a in rest if a != "--"]
    peer = P.Peer(args.ref or args.model, n_ctx=1024, kv_f32=True)
    print(f"{peer.version()}  {peer.system_info()}")
    worst, same, gaps = 0.0, 0, []
    for k, text in enumerate(PROMPTS[:args.prompts]):
        ids = peer.tokenize(text)
        if args.peer_only:
            out = peer.greedy(ids, args.n)
            ended = len(out) < args.n
        else:
            r = P.heddle_json("generate", args.model, "--ids", ",".join(map(str, ids)), "-n", args.n, *rest)
            out, ended = r["ids"], r["finish_reason"] == "stop"
        rows = judge(peer, ids, out, ended, args.batch)
        first = next((i for i, r in enumerate(rows) if r[0] > 0), None)
        line = f"prompt {k}: {len(out)} tokens{' then end' if ended else ''}, "
        if first is None:
            same += 1
            line += "all equal"
        else:
            gap, margin, best = rows[first]
            mine = out[first] if first < len(out) else "end"
            line += (f"first divergence at {first}: peer {best}, heddle {mine}, peer's margin of best two {margin:.4f}, "
                     f"gap {gap:.4f} ({'near tie' if gap <= args.tie else 'NOT a tie'}); "
                     f"{sum(r[0] > 0 for r in rows)} of {len(rows)} differ in all")
        gaps += [r[0] for r in rows]
        worst = max([worst] + [r[0] for r in rows])
        print(line, flush=True)
    n = len(gaps)
    print(f"{same} of {min(args.prompts, len(PROMPTS))} prompts equal; {sum(g > 0 for g in gaps)} of {n} tokens differ from "
          f"the peer's choice on the same text; largest gap {worst:.4f}, near tie means at most {args.tie}")
    sys.exit(worst > args.tie)


if __name__ == "__main__":
    main()
