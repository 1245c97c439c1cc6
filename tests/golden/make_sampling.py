#!/usr/bin/env python3
"""make_sampling.py - cases for tests/test_sampler.c, from definitions written here in float64.

usage: make_sampling.py OUT.json [--check [VOCAB.gguf]]

Needs python3 and numpy.  Everything follows docs/sampling.md, with whole sorts and exact quadratic searches instead of
the product's methods.  --check first compares these definitions with the transformers library (TopP, TopK, MinP,
Typical, RepetitionPenalty) and with llama.cpp through llama_cpp_python (top_p, min_p, typical, XTC, penalties and, given
a GGUF file with a vocabulary, DRY) on random untied logits, and stops on any difference.
Cases whose answer hangs on rounding (a cut or a draw within 1e-5 of its border) are left out.
"""
import argparse
import json
import sys
import numpy as np

NEG = -np.inf
MARGIN = 1e-5


class Near(Exception):
    """The case is too close to a border."""


# ---- Philox4x32-10 (Salmon et al. 2011) ----
def philox(ctr, key):
    c, k = list(ctr), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


assert philox([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]) == [
    0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]  # a published answer


def uniform(seed, sample, position, purpose):
    o = philox([position & 0xFFFFFFFF, position >> 32, sample, purpose], [seed & 0xFFFFFFFF, seed >> 32])
    return ((o[0] << 32 | o[1]) >> 11) * 2.0 ** -53


# ---- processors ----
def last(history, window):
    return history[-window:] if window else history


def repetition(x, h, p):
    for t in set(h):
        x[t] = x[t] / p if x[t] > 0 else x[t] * p


def presence(x, h, p):
    for t in set(h):
        x[t] -= p


def frequency(x, h, p):
    for t in set(h):
        x[t] -= p * h.count(t)


def dry(x, h, multiplier, base, allowed, breakers):
    longest = {}
    for at in range(1, len(h)):  # h[at] followed h[..at): how long a span ends both there and at the end?
        if h[at] in breakers:
            continue
        n = 0
        while n < at and h[at - 1 - n] == h[-1 - n] and h[-1 - n] not in breakers:
            n += 1
        longest[h[at]] = max(longest.get(h[at], 0), n)
    for t, n in longest.items():
        if n >= max(allowed, 1):
            x[t] -= min(multiplier * base ** (n - allowed), 1e30)


# ---- truncations: a list of ids in order in, one out ----
def softmax(v):
    w = np.exp(v - np.max(v))
    return w / w.sum()


def ordered(x):
    return [i for i in sorted(range(len(x)), key=lambda i: (-x[i], i)) if x[i] > NEG]


def shortest(ids, probs, p):
    """The shortest run from the front with probability >= p."""
    c = np.cumsum(probs)
    if np.any(np.abs(c[:-1] - p) < MARGIN):
        raise Near
    n = int(np.searchsorted(c, p - 1e-12)) + 1
    return ids[:min(n, len(ids))]


def top_p(x, ids, p):
    return shortest(ids, softmax(x[ids]), p) if p < 1 else ids


def typical(x, ids, p):
    if p >= 1:
        return ids
    pr = softmax(x[ids])
    surprise = np.max(x[ids]) + np.log(np.exp(x[ids] - np.max(x[ids])).sum()) - x[ids]
    dist = np.abs(surprise - np.where(pr > 0, pr * surprise, 0).sum())
    s = sorted(dist)
    if any(1e-9 < b - a < MARGIN for a, b in zip(s, s[1:])):
        raise Near
    o = sorted(range(len(ids)), key=lambda j: (round(dist[j], 8), ids[j]))
    kept = set(shortest([ids[j] for j in o], pr[o], p))
    return [i for i in ids if i in kept]


def min_p(x, ids, p):
    if not p:
        return ids
    r = np.exp(x[ids] - x[ids[0]])
    if np.any(np.abs(r[1:] - p) < MARGIN) and p < 1:
        raise Near
    return [i for j, i in enumerate(ids) if r[j] >= p - 1e-12]


def xtc(x, ids, threshold):
    pr = softmax(x[ids])
    if np.any(np.abs(pr - threshold) < MARGIN):
        raise Near
    n = int((pr >= threshold).sum())
    return ids[n - 1:] if n > 1 else ids


def top_k(x, ids, k):
    return ids[:k] if k else ids


def run(case):
    """Processed logits, final ids, their probabilities, the token."""
    x = np.array(case["logits"], dtype=np.float64)
    h = case["history"]
    for i in range(len(x)):
        if i in case["banned"] or (case["allowed"] is not None and i not in case["allowed"]):
            x[i] = NEG
    for i, b in case["bias"]:
        x[i] += NEG if b is None else b
    if case["repetition_penalty"] != 1:
        repetition(x, last(h, case["repetition_window"]), case["repetition_penalty"])
    if case["presence_penalty"]:
        presence(x, last(h, case["presence_window"]), case["presence_penalty"])
    if case["frequency_penalty"]:
        frequency(x, last(h, case["frequency_window"]), case["frequency_penalty"])
    if case["dry_multiplier"]:
        dry(x, last(h, case["dry_window"]), case["dry_multiplier"], case["dry_base"], case["dry_allowed_length"],
            set(case["dry_breakers"]))
    ids = ordered(x)
    processed = x
    if len(ids) == 0:
        raise Near
    # processors round to float32 in the product: equal values must stay equal and others apart
    d = np.diff(x[ids])
    if np.any((d != 0) & (np.abs(d) < 1e-4)):
        raise Near
    if case["temperature"] == 0:
        return processed, ids[:1], np.array([1.0]), ids[0]
    ids = top_p(x, ids, case["top_p"])
    ids = typical(x, ids, case["typical_p"])
    ids = min_p(x, ids, case["min_p"])
    if case["xtc_probability"] and uniform(case["seed"], case["sample"], case["position"], 1) < case["xtc_probability"]:
        ids = xtc(x, ids, case["xtc_threshold"])
    ids = top_k(x, ids, case["top_k"])
    probs = softmax(x[ids] / case["temperature"])
    u = uniform(case["seed"], case["sample"], case["position"], 0)
    c = np.cumsum(probs)
    if np.any(np.abs(c - u) < MARGIN):
        raise Near
    return processed, ids, probs, ids[min(int(np.searchsorted(c, u, side="right")), len(ids) - 1)]


# ---- random cases ----
def f32(v):
    return float(np.float32(v))


def base_case(rng, v):
    step = [1 / 64, 1 / 4, 1.0][rng.integers(3)]  # coarse steps make ties
    logits = np.round(rng.normal(0, rng.choice([1.0, 3.0, 8.0]), v) / step) * step
    return dict(logits=[float(a) for a in logits], history=[int(t) for t in rng.integers(0, v, rng.integers(0, 50))],
                banned=[], allowed=None, bias=[], temperature=1.0, top_p=1.0, min_p=0.0, typical_p=1.0, top_k=0,
                xtc_probability=0.0, xtc_threshold=f32(0.1), repetition_penalty=1.0, presence_penalty=0.0,
                frequency_penalty=0.0, repetition_window=20, presence_window=20, frequency_window=20,
                dry_multiplier=0.0, dry_base=1.75, dry_allowed_length=2, dry_window=0, dry_breakers=[],
                seed=int(rng.integers(0, 2 ** 63)) * 2 + int(rng.integers(2)), sample=int(rng.integers(0, 4)),
                position=int(rng.integers(0, 100000)))


def vary(rng, c, what):
    v = len(c["logits"])
    window = lambda: int(rng.choice([0, 1, 5, 20, 1000]))
    if what == "temperature":
        c["temperature"] = f32(rng.choice([0, 0.05, 0.5, 0.8, 2, 100]))
    elif what == "top_p":
        c["top_p"] = f32(rng.choice([0, 0.1, 0.5, 0.9, 0.99]))
    elif what == "typical":
        c["typical_p"] = f32(rng.choice([0, 0.2, 0.5, 0.95]))
    elif what == "min_p":
        c["min_p"] = f32(rng.choice([0.01, 0.1, 0.5, 1.0]))
    elif what == "xtc":
        c["xtc_probability"], c["xtc_threshold"] = f32(rng.choice([0.5, 1.0, 1.0])), f32(rng.choice([0.01, 0.05, 0.1, 0.3]))
    elif what == "top_k":
        c["top_k"] = int(rng.choice([1, 2, 5, 20, v, 1000]))
    elif what == "repetition":
        c["repetition_penalty"], c["repetition_window"] = f32(rng.choice([0.5, 1.1, 2.0])), window()
    elif what == "presence":
        c["presence_penalty"], c["presence_window"] = f32(rng.choice([-2, 0.5, 1.5])), window()
    elif what == "frequency":
        c["frequency_penalty"], c["frequency_window"] = f32(rng.choice([-1, 0.25, 2])), window()
    elif what == "dry":
        period = int(rng.integers(1, 12))  # histories that repeat themselves, with some noise
        h = [int(t) for t in rng.integers(0, v, period)] * 12
        h = h[:int(rng.integers(2, 12 * period + 1))]
        for _ in range(int(rng.integers(0, 3))):
            h[int(rng.integers(len(h)))] = int(rng.integers(0, v))
        c.update(history=h, dry_multiplier=f32(rng.choice([0.5, 0.8])), dry_base=f32(rng.choice([1.0, 1.25, 1.75])),
                 dry_allowed_length=int(rng.choice([0, 1, 2, 4])), dry_window=int(rng.choice([0, 0, 10, 30])),
                 dry_breakers=[int(t) for t in rng.choice(h, rng.integers(0, 2))])
    elif what == "bias":
        ids = rng.choice(v, 4, replace=False)
        c["bias"] = [[int(i), None if j == 0 else f32(rng.choice([-100, -1, 2.5, 100]))] for j, i in enumerate(ids)]
    elif what == "banned":
        c["banned"] = [int(i) for i in rng.choice(v, 5, replace=False)]
    elif what == "mask":
        c["allowed"] = sorted(int(i) for i in rng.choice(v, rng.integers(1, v), replace=False))


KINDS = ["temperature", "top_p", "typical", "min_p", "xtc", "top_k", "repetition", "presence", "frequency", "dry", "bias",
         "banned", "mask"]


def make(rng, n_single, n_mixed):
    plans = [[]] * 6 + [[k] for k in KINDS for _ in range(n_single)]
    plans += [["top_p", "typical", "xtc"]] * 8 + [["typical", "xtc", "top_k"]] * 8
    plans += [list(rng.choice(KINDS, rng.integers(2, 7), replace=False)) for _ in range(n_mixed)]
    for plan in plans:
        for _ in range(1000):
            c = base_case(rng, int(rng.integers(3, 70)) if len(plan) != 1 else 40)
            for k in plan:
                if len(c["logits"]) < 6 and k in ("bias", "banned"):
                    continue
                vary(rng, c, k)
            try:
                x, ids, probs, token = run(c)
            except Near:
                continue
            break
        else:
            sys.exit(f"no case for {plan}")
        lse = np.max(x) + np.log(np.exp(x - np.max(x)).sum())
        top = sorted(range(len(x)), key=lambda i: (-x[i], i))[:5]
        c["expect"] = dict(ids=ids, probs=[round(float(p), 9) for p in probs], token=int(token),
                           logprob=round(float(x[token] - lse), 7),
                           top=[[i, round(max(float(x[i] - lse), -1e30), 7)] for i in top])
        c["seed"] = str(c["seed"])  # JSON readers lose integers above 2^63
        yield c


# ---- agreement with other implementations ----
def survivors(scores):
    return set(np.flatnonzero(np.isfinite(np.asarray(scores))).tolist())


def check_transformers(rng):
    import torch
    from transformers.generation import logits_process as lp
    for _ in range(300):
        x = np.float32(rng.normal(0, 3, 60)).astype(np.float64)
        t = torch.tensor(x, dtype=torch.float64)[None]
        ids = ordered(x)
        h = [int(a) for a in rng.integers(0, 60, 30)]
        ht = torch.tensor([h])
        p = float(rng.uniform(0.05, 0.99))
        k = int(rng.integers(1, 60))
        try:
            assert set(top_p(x, ids, p)) == survivors(lp.TopPLogitsWarper(p)(ht, t)[0])
            assert set(top_k(x, ids, k)) == survivors(lp.TopKLogitsWarper(k)(ht, t)[0])
            assert set(min_p(x, ids, p)) == survivors(lp.MinPLogitsWarper(p)(ht, t)[0])
            assert set(typical(x, ids, p)) == survivors(lp.TypicalLogitsWarper(p)(ht, t)[0])
        except Near:
            continue
        y = x.copy()
        repetition(y, h, 1.3)
        assert np.allclose(y, lp.RepetitionPenaltyLogitsProcessor(1.3)(ht, t.clone())[0].numpy())
    print("agrees with transformers", file=sys.stderr)


def check_llama(rng, vocab_file):
    import ctypes
    import llama_cpp.llama_cpp as ll
    vocab, n_vocab = None, 60
    if vocab_file:
        mp = ll.llama_model_default_params()
        mp.vocab_only = True
        model = ll.llama_model_load_from_file(vocab_file.encode(), mp)
        vocab = ll.llama_model_get_vocab(model)
        n_vocab = ll.llama_vocab_n_tokens(vocab)

    def apply(smpl, x, history=()):
        for t in history:
            ll.llama_sampler_accept(smpl, t)
        data = (ll.llama_token_data * len(x))(*[ll.llama_token_data(i, v, 0.0) for i, v in enumerate(x)])
        arr = ll.llama_token_data_array(data, len(x), -1, False)
        ll.llama_sampler_apply(smpl, ctypes.byref(arr))
        out = {arr.data[i].id: arr.data[i].logit for i in range(arr.size)}
        ll.llama_sampler_free(smpl)
        return out

    for _ in range(300):
        x = np.float32(rng.normal(0, 3, 60)).astype(np.float64)
        ids = ordered(x)
        h = [int(a) for a in rng.integers(0, 60, 30)]
        p = float(rng.uniform(0.05, 0.99))
        try:
            assert set(top_p(x, ids, p)) == set(apply(ll.llama_sampler_init_top_p(p, 1), x))
            assert set(min_p(x, ids, p)) == set(apply(ll.llama_sampler_init_min_p(p, 1), x))
            assert set(typical(x, ids, p)) == set(apply(ll.llama_sampler_init_typical(p, 1), x))
            th = float(rng.uniform(0.01, 0.45))
            assert set(xtc(x, ids, th)) == set(apply(ll.llama_sampler_init_xtc(1.0, th, 1, 0), x))
        except Near:
            continue
        y = x.copy()
        repetition(y, h[-20:], 1.3)
        frequency(y, h[-20:], 0.4)
        presence(y, h[-20:], 0.7)
        got = apply(ll.llama_sampler_init_penalties(60, 20, 1.3, 0.4, 0.7), x, h)
        assert np.allclose(y, [got[i] for i in range(60)], atol=1e-5)
        if vocab:
            c = base_case(rng, 60)
            vary(rng, c, "dry")
            if c["dry_base"] <= 1 or c["dry_allowed_length"] < 1:
                continue
            y = x.copy()
            dry(y, c["history"], 0.8, 1.25, c["dry_allowed_length"], set())
            got = apply(ll.llama_sampler_init_dry(vocab, 0.8, 1.25, c["dry_allowed_length"], 4096, None, 0), x,
                        c["history"])
            assert np.allclose(y, [got[i] for i in range(60)], rtol=1e-5, atol=1e-4), (y, got)
    print("agrees with llama.cpp" + (" (DRY too)" if vocab else ""), file=sys.stderr)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--check", nargs="?", const="")
    args = a.parse_args()
    if args.check is not None:
        check_transformers(np.random.default_rng(1))
        check_llama(np.random.default_rng(2), args.check)
    cases = list(make(np.random.default_rng(3), 8, 120))
    with open(args.out, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
    print(len(cases), "cases", file=sys.stderr)


if __name__ == "__main__":
    main()
