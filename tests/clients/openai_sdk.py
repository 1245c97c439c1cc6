#!/usr/bin/env python3
"""The official OpenAI client against a running heddle: streaming and not, logprobs, n, errors.

    pip install openai; heddle serve MODEL --port 8080 &
    tests/clients/openai_sdk.py http://127.0.0.1:8080/v1 [MODEL_ID]

Exits 0 if every check held, 77 if the client library is not installed.
"""
import sys

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed")
    sys.exit(77)

base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
model = sys.argv[2] if len(sys.argv) > 2 else client.models.list().data[0].id
messages = [{"role": "user", "content": "Say a few words about rivers."}]
failures = 0


def check(name, ok, detail=""):
    global failures
    failures += not ok
    print(("ok   " if ok else "FAIL ") + name, "" if ok else detail)


def same(**kw):
    """A request streamed and not; returns both texts."""
    plain = client.chat.completions.create(model=model, messages=messages, **kw)
    text, finish, usage, ids = "", None, None, set()
    for chunk in client.chat.completions.create(
        model=model, messages=messages, stream=True, stream_options={"include_usage": True}, **kw
    ):
        ids.add(chunk.id)
        for c in chunk.choices:
            text += c.delta.content or ""
            finish = c.finish_reason or finish
        usage = chunk.usage or usage
    return plain, text, finish, usage, ids


plain, text, finish, usage, ids = same(max_tokens=24, temperature=0)
check("stream equals reply", plain.choices[0].message.content == text, (plain.choices[0].message.content, text))
check("finish reason", plain.choices[0].finish_reason == finish)
check("usage", usage is not None and usage.completion_tokens == plain.usage.completion_tokens)
check("one id per stream", len(ids) == 1)
plain, text, *_ = same(max_tokens=24, temperature=1, seed=7)
check("a seed repeats", plain.choices[0].message.content == text)

r = client.chat.completions.create(
    model=model, messages=messages, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
)
entries = r.choices[0].logprobs.content
check("logprobs", 1 <= len(entries) <= 5 and all(len(e.top_logprobs) == 3 and e.logprob <= 0 for e in entries))
check("greedy is the top", all(e.token == e.top_logprobs[0].token for e in entries))

r = client.chat.completions.create(model=model, messages=messages, max_tokens=5, n=3, seed=1)
check("n choices", [c.index for c in r.choices] == [0, 1, 2])

r = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0)
text = "".join(
    c.choices[0].text
    for c in client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True
    )
)
check("completions: stream equals reply", r.choices[0].text == text)
r = client.completions.create(model=model, prompt="Once upon a time", max_tokens=0, echo=True, logprobs=1)
lp = r.choices[0].logprobs
check("scoring", lp.token_logprobs[0] is None and all(x <= 0 for x in lp.token_logprobs[1:]))


def fails(name, kind, **kw):
    try:
        client.chat.completions.create(**{"model": model, "messages": messages, **kw})
        check(name, False, "no error")
    except kind as e:
        check(name, isinstance(e.body, dict) and "message" in e.body, e)


fails("bad temperature is 400", openai.BadRequestError, temperature=-1)
fails("unknown model is 404", openai.NotFoundError, model="no-such-model")
fails("bad role is 400", openai.BadRequestError, messages=[{"role": "king", "content": "x"}])

with client.chat.completions.create(model=model, messages=messages, max_tokens=500, stream=True) as s:
    for i, chunk in enumerate(s):
        if i == 3:
            break
check("leaving a stream", True)
plain = client.embeddings.create(model=model, input=["one", "two"], encoding_format="float").data
packed = client.embeddings.create(model=model, input=["one", "two"]).data  # the client asks for base64
same_numbers = [len(a.embedding) > 0 and len(a.embedding) == len(b.embedding)
                and max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-7 for a, b in zip(plain, packed)]
check("embeddings", [d.index for d in packed] == [0, 1] and same_numbers == [True, True])
sys.exit(1 if failures else 0)
