#!/usr/bin/env python3
"""chat.py - heddle from Python through ctypes, without a compiled binding: a question, streamed.

    chat.py MODEL QUESTION      $HEDDLE_LIBRARY: libheddle.so.0 if the loader does not find it
"""
import ctypes as c
import json
import os
import sys

MESSAGE, EVENT_DONE, FOREVER = 360, 6, 2**64 - 1


def struct(name, fields):
    """A struct of heddle.h: `fields` is its members in order, the leading size left out."""
    return type(name, (c.Structure,), {"_fields_": [("size", c.c_size_t)] + [(n, t) for t, ns in fields for n in ns.split()]})


Error = struct("heddle_error", [(c.c_int32, "code"), (c.c_uint32, "line"), (c.c_uint64, "at"), (c.c_char * 64, "field"),
                                (c.c_char * MESSAGE, "message")])
Request = struct("heddle_request", [
    (c.POINTER(c.c_int32), "prompt"), (c.c_size_t, "n_prompt"), (c.c_uint32, "max_tokens min_tokens"), (c.c_char_p, "id"),
    (c.c_uint64, "seed"), (c.c_uint32, "sample_index"), (c.c_float, "temperature top_p min_p typical_p"), (c.c_uint32, "top_k"),
    (c.c_float, "xtc_probability xtc_threshold repetition_penalty presence_penalty frequency_penalty"),
    (c.c_uint32, "repetition_window presence_window frequency_window"), (c.c_float, "dry_multiplier dry_base"),
    (c.c_uint32, "dry_allowed_length dry_window"), (c.c_void_p, "dry_breakers"), (c.c_size_t, "n_dry_breakers"),
    (c.c_void_p, "bias"), (c.c_size_t, "n_bias"), (c.c_int, "logprobs"), (c.c_uint32, "n_top_logprobs"),
    (c.c_int, "prompt_logprobs prompt_logits"), (c.c_void_p, "stops"), (c.c_size_t, "n_stops"), (c.c_void_p, "stop_ids"),
    (c.c_size_t, "n_stop_ids"), (c.c_int, "ignore_eos special"),
    (c.c_uint64, "queue_timeout_us first_token_timeout_us total_timeout_us"), (c.c_char_p, "method"), (c.c_uint64, "method_arg"),
    (c.c_int32, "priority"), (c.c_int, "collect"), (c.c_char_p, "share"), (c.c_void_p, "cancel notify notify_ctx"),
    (c.c_char_p, "cache_space"), (c.c_int, "no_cache"), (c.c_void_p, "said"), (c.c_size_t, "n_said")])
Stats = struct("heddle_stats", [(c.c_uint32, "prompt_tokens cached_tokens generated_tokens preemptions"), (
    c.c_uint64, "queue_us prefill_us decode_us gap_p50_us gap_p99_us paused_us preempted_us")])
Event = struct("heddle_event", [
    (c.c_int32, "kind token"), (c.c_uint64, "position"), (c.c_float, "logprob"), (c.c_uint32, "n_top"), (c.c_void_p, "top"),
    (c.c_void_p, "text"), (c.c_size_t, "n_text"), (c.c_void_p, "logits"), (c.c_size_t, "n_logits"), (c.c_void_p, "vector"),
    (c.c_size_t, "n_vector"), (c.c_int32, "finish reason stop_index"), (c.c_int, "ended_by_eos"), (c.POINTER(Stats), "stats"),
    (c.POINTER(Error), "error")])

heddle = c.CDLL(os.environ.get("HEDDLE_LIBRARY", "libheddle.so.0"))
heddle.heddle_struct_size.restype = c.c_size_t
heddle.heddle_finish_name.restype = heddle.heddle_version.restype = c.c_char_p
for t in (Error, Request, Stats, Event):  # written down right?
    assert heddle.heddle_struct_size(t.__name__.encode()) == c.sizeof(t), t.__name__


def new(t):
    x = t()
    x.size = c.sizeof(t)
    return x


def call(name, *args):
    err = new(Error)
    if getattr(heddle, name)(*args, c.byref(err)):
        raise RuntimeError(f"{name}: {err.field.decode()} {err.message.decode()}".replace(":  ", ": "))


def chat(model_name, question):
    model, engine, session = c.c_void_p(), c.c_void_p(), c.c_void_p()
    ids, n = c.POINTER(c.c_int32)(), c.c_size_t()
    call("heddle_model_open", c.byref(model), model_name.encode(), None)
    call("heddle_engine_open", c.byref(engine), model, None)
    messages = json.dumps([{"role": "user", "content": question}]).encode()
    call("heddle_render_ids", model, messages, c.c_size_t(len(messages)), c.byref(ids), c.byref(n))
    request = Request()
    heddle.heddle_request_init(c.byref(request), c.c_size_t(c.sizeof(request)))
    request.prompt, request.n_prompt, request.max_tokens, request.temperature = ids, n, 200, 0
    call("heddle_open", engine, c.byref(request), c.c_size_t(1), c.byref(session))
    heddle.heddle_free(ids)
    event = new(Event)
    while heddle.heddle_next(session, c.byref(event), c.c_uint64(FOREVER)) == 0:
        yield c.string_at(event.text, event.n_text).decode()
        if event.kind == EVENT_DONE:
            yield f"\n({event.stats.contents.generated_tokens} tokens, {heddle.heddle_finish_name(event.finish).decode()})\n"
    heddle.heddle_session_free(session)
    heddle.heddle_engine_close(engine)
    heddle.heddle_model_close(model)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        for piece in chat(*sys.argv[1:]):
            print(piece, end="", flush=True)
    except RuntimeError as e:
        sys.exit(str(e))
