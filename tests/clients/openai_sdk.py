#!/usr/bin/env python3
"""The official OpenAI client against a running heddle: streaming and not, logprobs, n, errors; of a server with a state
directory also durable requests: idempotency keys, stored completions, streams taken up again.

    pip install openai; heddle serve MODEL --port 8080 [--state-dir DIR] &
    tests/clients/openai_sdk.py http://127.0.0.1:8080/v1 [MODEL_ID]

Exits 0 if every check held, 77 if the client library is not installed.
"""
import sys
import time
import uuid

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


def durable():
    """Answers that outlive their connection.  No seed is given: that the text repeats shows that it is the same answer."""
    chats = client.chat.completions
    ask = {"model": model, "messages": messages, "max_tokens": 30, "temperature": 1}
    key = {"Idempotency-Key": f"key-{uuid.uuid4()}"}

    def joined(chunks):
        chunks = list(chunks)
        return {c.id for c in chunks}, [c.choices[0].delta.content or "" for c in chunks if c.choices]

    first = chats.create(**ask, extra_headers=key)
    again = chats.create(**ask, extra_headers=key)
    check("a key repeats the answer", first.to_dict() == again.to_dict(), (first, again))
    ids, parts = joined(chats.create(**ask, stream=True, extra_headers=key))
    check("a key replays the answer as a stream", ids == {first.id} and "".join(parts) == first.choices[0].message.content, parts)
    _, rest = joined(chats.create(**ask, stream=True, extra_headers={**key, "Last-Event-ID": "3"}))
    check("Last-Event-ID goes on behind it", rest == parts[4:], (rest, parts))
    other = chats.create(**ask, extra_headers={"Idempotency-Key": f"key-{uuid.uuid4()}"})
    check("another key, another answer", other.id != first.id)
    fails("another body under a key is 409", openai.ConflictError, max_tokens=31, extra_headers=key)

    key = {"Idempotency-Key": f"key-{uuid.uuid4()}"}
    with chats.create(**ask, stream=True, extra_headers=key) as s:
        begun = [next(iter(s)) for _ in range(3)]
    ids, parts = joined(chats.create(**ask, stream=True, extra_headers=key))
    ids2, rest = joined(chats.create(**ask, stream=True, extra_headers={**key, "Last-Event-ID": "2"}))
    check("a stream that was left goes on", ids == ids2 == {begun[0].id} and rest == parts[3:], (begun, parts, rest))
    check("what was seen of it stays", [c.choices[0].delta.content or "" for c in begun] == parts[:3], (begun, parts))

    stored = chats.create(**ask, store=True)
    check("retrieve", chats.retrieve(stored.id).to_dict() == stored.to_dict())
    gone = chats.delete(stored.id)
    check("delete", gone.deleted is True and gone.id == stored.id and gone.object == "chat.completion.deleted")
    try:
        chats.retrieve(stored.id)
        check("a deleted one is 404", False, "no error")
    except openai.NotFoundError:
        check("a deleted one is 404", True)

    begun = chats.create(**ask, extra_body={"background": True})
    status, end = begun.to_dict().get("status"), time.monotonic() + 60
    check("background answers at once", status in ("queued", "in_progress"), begun)
    while time.monotonic() < end and status in ("queued", "in_progress"):
        time.sleep(0.1)
        late = chats.retrieve(begun.id)
        status = late.to_dict().get("status")
    check("background ends", late.id == begun.id and late.choices[0].finish_reason in ("stop", "length"), late)

    key = {"Idempotency-Key": f"key-{uuid.uuid4()}"}
    text = client.completions.create(model=model, prompt="Once", max_tokens=9, extra_headers=key)
    same_text = client.completions.create(model=model, prompt="Once", max_tokens=9, extra_headers=key)
    check("completions: a key repeats the answer", text.to_dict() == same_text.to_dict())


if "durable" in client.get("/heddle/state", cast_to=object):
    durable()
else:
    print("skipped: durable requests; the server has no --state-dir")
sys.exit(1 if failures else 0)
