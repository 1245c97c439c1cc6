"""attacks.py - what a hostile client does to one server.  Each attack is a function (target, rng); its name is counted.

An attack raises net.Broken when the server answers something it never should; network errors are its own doing.
"""
import json
import socket
import time

from net import Broken, Reader, connect, judge, request, reset

PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/heddle/cancel"]
FIELDS = """model messages prompt max_tokens max_completion_tokens temperature top_p top_k min_p typical_p xtc_probability
    xtc_threshold repeat_penalty repetition_penalty presence_penalty frequency_penalty repeat_last_n
    repetition_context_size presence_context_size frequency_context_size dry_multiplier dry_base dry_allowed_length
    dry_penalty_last_n dry_sequence_breakers seed logit_bias stop stop_token_ids n min_tokens ignore_eos
    skip_special_tokens stream return_token_ids timings_per_token queue_timeout_ms first_token_timeout_ms
    total_timeout_ms stream_options logprobs top_logprobs echo suffix best_of response_format tools tool_choice
    chat_template_kwargs add_generation_prompt continue_final_message add_special_tokens parse_special user metadata
    content tokens id with_pieces add_special""".split()
# JSON texts: every wrong type, edge, and spelling.
VALUES = ["null", "true", "false", "0", "-0", "1", "-1", "2", "0.5", "128", "129", "1024", "2147483648", "-2147483649",
          "4294967295", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551615",
          "18446744073709551616", "-9223372036854775809", "1" * 40, "9" * 400, "1e308", "-1e308", "1e-320", "1e309",
          "1e400", "0." + "3" * 500, "5e-1", "1E+2", '""', '"a"', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"',
          '"' + "x" * 5000 + '"', '"\\uffff\\ufeff\\u202e"', "[]", "{}", "[null]", "[[]]", '[""]', '["a","b"]',
          "[1,2,3]", "[-1]", "[1e9]", "[99999999999]", '[{"role":"user"}]', '[{"role":"user","content":null}]',
          '[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url"}]}]',
          '[{"role":1,"content":"x"}]', '[{"role":"user","content":"hi","tool_calls":[{"function":{"arguments":"{"}}]}]',
          '{"0":100,"1":-100}', '{"-1":1}', '{"99999999999999999999":1}', '{"0":"x"}', '{"":1}',
          '{"type":"json_object"}',
          '{"include_usage":1}', "[" + ",".join(f'"s{i}"' for i in range(600)) + "]",
          "[" + ",".join(str(i) for i in range(300)) + "]", "[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600]


def base(rng, path):
    """A valid body for a path."""
    if path.endswith("chat/completions"):
        return {"messages": [{"role": "user", "content": rng.choice(["run", "say", "hello"])}], "max_tokens": 8}
    if path.endswith("completions"):
        return {"prompt": rng.choice(["run", "ab cd", [1, 2, 3], ["a", "b"]]), "max_tokens": 8}
    if path == "/tokenize":
        return {"content": "some text"}
    if path == "/detokenize":
        return {"tokens": [1, 2]}
    return {"id": "nothing"}


def converse(t, s, tries=1):
    """Read replies and judge them; a close or a time-out is an answer too."""
    r = Reader(s)
    try:
        for _ in range(tries):
            status, headers, body = r.reply()
            t.saw(status)
            judge(status, headers, body)
    except (EOFError, OSError):
        pass


def send(t, data, timeout=6.0, tries=1):
    s = connect(t.port, timeout)
    try:
        s.sendall(data)
        converse(t, s, tries)
    except OSError:
        pass
    finally:
        s.close()


def wrong_fields(t, rng):
    path = rng.choice(PATHS)
    body = {k: json.dumps(v) for k, v in base(rng, path).items()}
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        body[rng.choice(FIELDS)] = rng.choice(VALUES)
    text = "{" + ",".join(f'"{k}":{v}' for k, v in body.items()) + "}"
    send(t, request("POST", path, text.encode()))


def absurd_sampling(t, rng):
    body = base(rng, "/v1/completions")
    edge = [0, 1, 1e-30, 0.01, 100, 2, -2, 0.5, 4294967294, 65536]
    for f in ("temperature top_p top_k min_p typical_p xtc_probability xtc_threshold repetition_penalty presence_penalty "
              "frequency_penalty repeat_last_n dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
              "min_tokens logprobs seed").split():
        if rng.random() < 0.5:
            body[f] = rng.choice(edge)
    body["logit_bias"] = {str(rng.randrange(3)): rng.choice([-100, 100, 0.5]) for _ in range(3)}
    body["stream"] = rng.random() < 0.5
    send(t, request("POST", "/v1/completions", json.dumps(body).encode()))


def bad_json(t, rng):
    good = json.dumps(base(rng, "/v1/chat/completions"))
    cut = rng.randrange(len(good))
    text = rng.choice([
        good[:cut].encode(), good[cut:].encode(), b"", b"\0", b"null", b"[]", b"\xff\xfe", good.encode("utf-16"),
                       b"{" * 5000,
        b"[" * 100000, b'{"messages":' * 3000, b'"' + b"\\u0000" * 3000 + b'"', b"1" * 100000,
                       b'{"a":' + b"9" * 200000 + b"}",
        good.encode()[:cut] + bytes([rng.randrange(256)]) + good.encode()[cut:], b"[" + b"1," * 200000 + b"1]",
        b'{"prompt":"\xed\xa0\x80","max_tokens":1}', b'{"prompt":"\xc0\xaf\xff","max_tokens":1}',
        b"{" + b",".join(b'"k%d":1' % i for i in range(20000)) + b"}", b'{"prompt":"a","prompt":["b"],"max_tokens":1}'])
    send(t, request("POST", rng.choice(PATHS), text))


def malformed_http(t, rng):
    body = b'{"prompt":"a","max_tokens":1}'
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    send(t, rng.choice([
        b"GET\r\n\r\n", b"\r\n" * 2000, b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n",
                        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /%zz%00%2e%2e/ HTTP/1.1\r\nHost: x\r\n\r\n",
                        b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", b"get / http/1.1\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"b" * 70000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 12000 + b"\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: \0\r\n\r\n",
        post + b"Content-Length: -1\r\n\r\n", post + b"Content-Length: 99999999999999999999\r\n\r\n",
        post + b"Content-Length: 40000000\r\n\r\n", post + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}",
        post + b"Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
        post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
                        post + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nx",
        post + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in body) + b"0\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\n1d\r\n" + body + b"\r\n0\r\n" + b"T: t\r\n" * 20000 + b"\r\n",
        post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                        post + b"Expect: 100-continue\r\nContent-Length: 29\r\n\r\n" + body,
        b"HEAD /health HTTP/1.0\r\n\r\n",
                        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"k" * 8000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: \"\x7f\xff<>\r\n\r\n", b"GET /health HTTP/1.1\nHost: x\n\n",
        b"GET /v1/models/" + b"%41" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                        rng.randbytes(rng.choice([1, 50, 5000, 200000])),
    ]), timeout=1.5)


def pipelined(t, rng):
    one = rng.choice([request("GET", "/health"), request("GET", "/metrics"), request("GET", "/v1/heddle/state"),
                      request("POST", "/v1/completions", b'{"prompt":"a","max_tokens":2}')])
    send(t, one * rng.choice([2, 40, 3000]), timeout=3.0, tries=10)


def hang_up(t, rng):
    """Leave at a random moment of a generation, in one of three ways."""
    path = rng.choice(PATHS[:2])
    body = base(rng, path)
    body.update(stream=rng.random() < 0.7, max_tokens=400, n=rng.choice([1, 1, 1, 4, 128]),
                ignore_eos=rng.random() < 0.5)
    data = request("POST", path, json.dumps(body).encode())
    s = connect(t.port, 5.0)
    how = rng.randrange(3)
    try:
        s.sendall(data[:rng.randrange(1, len(data))] if rng.random() < 0.2 else data)
        if rng.random() < 0.7:
            time.sleep(rng.random() ** 3 * 2)
        if how == 2:
            s.shutdown(socket.SHUT_WR)
            converse(t, s)
        elif rng.random() < 0.5:
            s.recv(rng.choice([1, 100, 60000]))
    except OSError:
        pass
    (reset if how == 0 else socket.socket.close)(s)


def stall_reading(t, rng):
    """Ask for much, read nothing (a tiny window), stay a while, perhaps read on."""
    path = rng.choice(PATHS[:2])
    body = base(rng, path)
    body.update(stream=True, max_tokens=480, n=rng.choice([1, 8, 32]), logprobs=True if "chat" in path else 5,
                ignore_eos=True)
    if "chat" in path:
        body["top_logprobs"] = 5
    s = connect(t.port, 10.0, rcvbuf=2048)
    try:
        s.sendall(request("POST", path, json.dumps(body).encode()))
        t.wait(rng.choice([1, 5, 20, 45]))
        if rng.random() < 0.5:
            converse(t, s)
    except OSError:
        pass
    (reset if rng.random() < 0.5 else socket.socket.close)(s)


def stall_sending(t, rng):
    """A head or a body that stops, or drips."""
    data = request("POST", rng.choice(PATHS), json.dumps(base(rng, "/v1/completions")).encode() + b" " * 3000)
    s = connect(t.port, 15.0)
    try:
        cut = rng.choice([1, 10, 60, 100, rng.randrange(1, len(data))])
        s.sendall(data[:cut])
        if rng.random() < 0.5:
            for b in data[cut:cut + 30]:
                s.sendall(bytes([b]))
                t.wait(0.2)
        else:
            t.wait(rng.choice([1, 12, 35]))
        s.settimeout(1.0)
        converse(t, s)
    except OSError:
        pass
    (reset if rng.random() < 0.5 else socket.socket.close)(s)


def flood_queue(t, rng):
    """More requests at once than rows and queue hold: some must be told 429."""
    body = json.dumps({"prompt": "run", "max_tokens": 60, "ignore_eos": True}).encode()
    data = request("POST", "/v1/completions", body)
    socks = []
    try:
        for _ in range(60):
            s = connect(t.port, 3.0)
            s.sendall(data)
            socks.append(s)
        for s in socks[::-1][:25]:
            s.settimeout(1.0)
            converse(t, s)
    except OSError:
        pass
    for s in socks:
        (reset if rng.random() < 0.5 else socket.socket.close)(s)


def flood_connections(t, rng):
    socks = []
    try:
        for _ in range(rng.choice([100, 300])):
            socks.append(connect(t.port, 1.0))
        t.wait(rng.choice([0, 0.2, 1]))
    except OSError:
        pass
    for s in socks:
        (reset if rng.random() < 0.5 else socket.socket.close)(s)


def large_bodies(t, rng):
    kind = rng.randrange(5)
    if kind == 0:
        body = {"prompt": "word " * rng.choice([100, 5000, 100000]), "max_tokens": 4}
    elif kind == 1:
        body = {"prompt": [[1] * 3] * rng.choice([64, 2000]), "max_tokens": 1, "n": 2}
    elif kind == 2:
        body = {"prompt": "a", "max_tokens": 4, "stop": ["s%d" % i * 20 for i in range(rng.choice([4, 64, 5000]))]}
    elif kind == 3:
        body = {"content": "\u00e9\u4e2d\U0001f600 <s></s>" * rng.choice([100, 20000]), "with_pieces": True}
    else:
        body = {"messages": [{"role": rng.choice(["user", "assistant", "system", "x"]), "content": "m"}] *
                rng.choice([3, 500, 20000]), "max_tokens": 2}
    path = ["/v1/completions"] * 3 + ["/tokenize", "/v1/chat/completions"]
    send(t, request("POST", path[kind], json.dumps(body).encode()), timeout=10.0)


def cancel_others(t, rng):
    """Read the ids out of the state and cancel one; it may be a canary's, which then asks again."""
    s = connect(t.port, 5.0)
    try:
        s.sendall(request("GET", "/v1/heddle/state"))
        r = Reader(s)
        status, _, body = r.reply()
        if status == 200:
            rows = json.loads(body)
            ids = [x["id"] for x in rows["rows"] + rows["queue"]]
            if ids:
                s.sendall(request("POST", "/v1/heddle/cancel", json.dumps({"id": rng.choice(ids)}).encode()))
                status, headers, body = r.reply()
                if status not in (200, 404):
                    raise Broken(f"cancel answered {status}")
    except (EOFError, OSError):
        pass
    finally:
        s.close()


ATTACKS = [(wrong_fields, 10), (absurd_sampling, 5), (bad_json, 5), (malformed_http, 6), (pipelined, 2), (hang_up, 8),
           (stall_reading, 2), (stall_sending, 2), (flood_queue, 1), (flood_connections, 1), (large_bodies, 2),
           (cancel_others, 1)]
