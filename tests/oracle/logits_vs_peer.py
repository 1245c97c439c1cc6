#!/usr/bin/env python3
"""logits_vs_peer.py - how far heddle's logits and llama.cpp's are from those of the exact weights.

usage: logits_vs_peer.py MODEL.gguf EXACT.gguf FILE [--tokens 256] [--factor 2] [--peer-only] [-- heddle options]

EXACT.gguf is dequantize.py's copy of MODEL.gguf; the reference is the peer on that copy in f32.  The first --tokens
tokens of FILE (BOS first if the file wants it) are run by heddle (`heddle logits MODEL --ids ... --out F`) and by the
peer on MODEL.gguf.  For both: rms and largest logit error after removing each position's mean error (a shift of all
logits changes nothing), mean and largest KL divergence, agreement of the best token.  heddle fails if its mean KL is
above --factor times the peer's (and above 1e-5).
"""
import argparse
import os
import sys
import tempfile

import numpy as np

import peer as P


def log_softmax(y):
    y = y - y.max(-1, keepdims=True)
    return y - np.log(np.exp(y).sum(-1, keepdims=True))


def compare(name, got, want):
    n, err2, worst, kls, same = len(want), 0.0, 0.0, [], 0
    for a, b in zip(got, want):  # a position at a time: vocabularies are large
        a, b = a.astype(np.float64), b.astype(np.float64)
        d = a - b
        d -= d.mean()
        err2 += (d * d).mean()
        worst = max(worst, abs(d).max())
        la, lb = log_softmax(a), log_softmax(b)
        kls.append(float((np.exp(lb) * (lb - la)).sum()))
        same += a.argmax() == b.argmax()
    print(f"{name:8} rms {np.sqrt(err2 / n):.4f}  max {worst:.3f}  KL mean {np.mean(kls):.2e} max {max(kls):.2e}  "
          f"best token agrees {same}/{n}", flush=True)
    return float(np.mean(kls))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("exact")
    ap.add_argument("file")
    ap.add_argument("--tokens", type=int, default=256)
    ap.add_argument("--factor", type=float, default=2.0)
    ap.add_argument("--peer-only", action="store_true")
    args, rest = ap.parse_known_args()
    text = open(args.file, "rb").read()[:args.tokens * 16].decode(errors="ignore")
    runs = []
    for path, f32 in ((args.exact, True), (args.model, False)):
        peer = P.Peer(path, n_ctx=args.tokens, threads=2, kv_f32=f32)
        ids = peer.tokenize(text)[:args.tokens]
        runs.append(np.stack([y for _, y in peer.run(ids, want_from=0)]))
        peer.close()
    want, got = runs
    theirs = compare("peer", got, want)
    if args.peer_only:
        return
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "logits")
        P.heddle("logits", args.model, "--ids", ",".join(map(str, ids)), "--out", out, *[a for a in rest if a != "--"])
        mine = np.fromfile(out, "<f4").reshape(len(ids), -1)
    mine = mine[:, :want.shape[1]]
    ours = compare("heddle", mine, want)
    sys.exit(not ours <= max(args.factor * theirs, 1e-5))


if __name__ == "__main__":
    main()
