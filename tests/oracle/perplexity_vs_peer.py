#!/usr/bin/env python3
"""perplexity_vs_peer.py - perplexity of heddle against llama.cpp's logits on the same GGUF file and text.

usage: perplexity_vs_peer.py MODEL.gguf FILE [--ctx 512] [--bytes N] [--threads 2] [--within 0.5] [--peer-only]

The text's tokens are cut into chunks that do not overlap.  If the file wants BOS, each chunk is BOS and ctx - 1 tokens,
otherwise ctx tokens; in a chunk every position after the first is scored, given those before it.  The last chunk may
be short.  `heddle perplexity MODEL FILE --ctx N --json` must lie within --within percent.  --bytes: only the first
N bytes of FILE (cut back to a whole character), written to a temporary file for heddle.
"""
import argparse
import math
import sys
import tempfile
import time

import peer as P


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("file")
    ap.add_argument("--ctx", type=int, default=512)
    ap.add_argument("--bytes", type=int, default=None)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--within", type=float, default=0.5, help="percent")
    ap.add_argument("--peer-only", action="store_true")
    args, rest = ap.parse_known_args()
    data = open(args.file, "rb").read()[:args.bytes]
    data = data.decode(errors="ignore").encode()
    peer = P.Peer(args.model, n_ctx=args.ctx, threads=args.threads)
    ids = peer.tokenize(data, bos=False)
    per = args.ctx - 1 if peer.add_bos else args.ctx
    nll, n, t0 = 0.0, 0, time.time()
    for at in range(0, len(ids), per):
        chunk = ([peer.bos] if peer.add_bos else []) + ids[at:at + per]
        peer.clear()
        for i, y in peer.run(chunk, want_from=0, rows=64):
            if i + 1 < len(chunk):
                nll -= P.log_softmax_at(y, chunk[i + 1])
                n += 1
    ppl = math.exp(nll / n)
    print(f"{peer.version()}: {len(ids)} tokens, {n} scored, nll {nll / n:.6f}, perplexity {ppl:.4f}, "
          f"{time.time() - t0:.1f} s")
    if args.peer_only:
        return
    peer.close()
    with tempfile.NamedTemporaryFile(suffix=".txt") as f:
        f.write(data)
        f.flush()
        r = P.heddle_json("perplexity", args.model, f.name, "--ctx", args.ctx, *[a for a in rest if a != "--"])
    diff = 100 * (r["perplexity"] / ppl - 1)
    print(f"heddle: {r['tokens']} scored, nll {math.log(r['perplexity']):.6f}, perplexity {r['perplexity']:.4f}: {diff:+.3f} %")
    if r["tokens"] != n:
        print(f"the counts differ: heddle scored {r['tokens']}, the peer {n}")
    sys.exit(not (abs(diff) <= args.within and r["tokens"] == n))


if __name__ == "__main__":
    main()
