"""peer.py - the other engine (llama.cpp through llama-cpp-python's low-level calls) and heddle as a subprocess.

The scripts beside this one use it.  Setting up, in a virtual environment:
    pip install numpy gguf tokenizers sentencepiece protobuf
    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python
heddle is $HEDDLE_BIN, or build/heddle of this checkout.
"""
import ctypes
import json
import os
import subprocess

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEDDLE = os.environ.get("HEDDLE_BIN", os.path.join(ROOT, "build", "heddle"))


def heddle(*args, stdin=None, timeout=1800):
    """Runs heddle and returns what it prints; stops with its message if it fails."""
    p = subprocess.run([HEDDLE, *map(str, args)], input=stdin, capture_output=True, timeout=timeout)
    if p.returncode:
        message = p.stderr.decode(errors="replace")[-2000:]
        raise SystemExit(f"heddle {' '.join(map(str, args))[:200]}\nexit {p.returncode}: {message}")
    return p.stdout


def heddle_json(*args, **kw):
    return json.loads(heddle(*args, "--json", **kw))


_log_off = None


class Peer:
    """One model and one context.  flash: True or False; the KV type is f16 unless f32 is asked for."""

    def __init__(self, path, n_ctx=2048, threads=1, flash=False, n_seqs=1, n_batch=512, kv_f32=False, vocab_only=False):
        global _log_off
        import llama_cpp as lc

        self.lc = lc
        if _log_off is None:
            _log_off = lc.llama_log_callback(lambda level, text, data: None)
            lc.llama_log_set(_log_off, None)
            lc.llama_backend_init()
        mp = lc.llama_model_default_params()
        mp.vocab_only = vocab_only
        self.model = lc.llama_model_load_from_file(os.fsencode(path), mp)
        if not self.model:
            raise SystemExit(f"the peer cannot load {path}")
        self.vocab = lc.llama_model_get_vocab(self.model)
        self.n_vocab = lc.llama_vocab_n_tokens(self.vocab)
        self.add_bos = lc.llama_vocab_get_add_bos(self.vocab)
        self.bos = lc.llama_vocab_bos(self.vocab)
        self.ctx = None
        if vocab_only:
            return
        cp = lc.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_seq_max = n_ctx * n_seqs, n_batch, min(n_batch, 512), n_seqs
        cp.n_outputs_max_per_seq = 0
        cp.n_threads = cp.n_threads_batch = threads
        cp.flash_attn_type = 1 if flash else 0
        cp.swa_full = False
        if kv_f32:
            cp.type_k = cp.type_v = 0
        self.ctx = lc.llama_init_from_model(self.model, cp)
        if not self.ctx:
            raise SystemExit("the peer cannot make a context")
        self.n_batch = n_batch
        self.batch = lc.llama_batch_init(n_batch, 0, 1)

    def close(self):
        if self.ctx:
            self.lc.llama_batch_free(self.batch)
            self.lc.llama_free(self.ctx)
        self.lc.llama_model_free(self.model)

    def system_info(self):
        return self.lc.llama_print_system_info().decode().strip()

    def version(self):
        return "llama-cpp-python " + self.lc.__version__

    def clear(self):
        self.lc.llama_memory_clear(self.lc.llama_get_memory(self.ctx), True)

    def is_eog(self, token):
        return bool(self.lc.llama_vocab_is_eog(self.vocab, int(token)))

    def tokenize(self, text, bos=None, special=False):
        """ids; bos: None = as the file says."""
        raw = text.encode() if isinstance(text, str) else text
        add = self.add_bos if bos is None else bos
        buf = (self.lc.llama_token * (len(raw) + 16))()
        n = self.lc.llama_tokenize(self.vocab, raw, len(raw), buf, len(buf), bool(add), special)
        assert n >= 0, n
        return list(buf[:n])

    def decode(self, tokens, positions, seqs, wants):
        """One step of at most n_batch tokens."""
        b, n = self.batch, len(tokens)
        assert n <= self.n_batch
        b.n_tokens = n
        for i in range(n):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = int(tokens[i]), int(positions[i]), 1, int(wants[i])
            b.seq_id[i][0] = int(seqs[i])
        rc = self.lc.llama_decode(self.ctx, b)
        if rc:
            raise SystemExit(f"the peer's decode failed: {rc}")

    def logits(self, i):
        """The logits of entry i of the last step, as a copy."""
        p = self.lc.llama_get_logits_ith(self.ctx, i)
        return np.ctypeslib.as_array(ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), (self.n_vocab,)).copy()

    def run(self, tokens, first=0, want_from=None, rows=128):
        """Feeds tokens at positions first.. of sequence 0; yields (index, logits) for every index >= want_from
        (None: the last one only)."""
        want_from = len(tokens) - 1 if want_from is None else want_from
        at, step = 0, min(rows, self.n_batch)
        while at < len(tokens):
            n = min(step, len(tokens) - at)
            wants = [at + i >= want_from for i in range(n)]
            self.decode(tokens[at:at + n], range(first + at, first + at + n), [0] * n, wants)
            for i in range(n):
                if wants[i]:
                    yield at + i, self.logits(i)
            at += n

    def greedy(self, ids, n):
        """n greedy tokens after ids (fewer at an end of generation), one decode step a token."""
        self.clear()
        (_, y), = self.run(ids)
        out = []
        while len(out) < n:
            t = int(y.argmax())
            if self.is_eog(t):
                break
            out.append(t)
            self.decode([t], [len(ids) + len(out) - 1], [0], [1])
            y = self.logits(0)
        return out


def log_softmax_at(y, t):
    y = y.astype(np.float64)
    m = y.max()
    return float(y[t] - m - np.log(np.exp(y - m).sum()))
