"""net.py - raw HTTP for hostile clients: sockets that can be abused, and a reader that trusts nothing."""
import json
import socket
import struct


class Broken(Exception):
    """The server's bytes are not HTTP, or its error is not our error shape."""


def connect(port, timeout=10.0, rcvbuf=None):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if rcvbuf:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    s.settimeout(timeout)
    s.connect(("127.0.0.1", port))
    return s


def reset(s):
    """Close with a RST instead of a FIN."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def request(method, path, body=b"", headers=()):
    head = [f"{method} {path} HTTP/1.1", "Host: x"]
    if body or method == "POST":
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join([*head, *headers]) + "\r\n\r\n").encode("latin-1") + body


class Reader:
    """Reads replies from a socket; keeps what is left over."""

    def __init__(self, sock):
        self.sock, self.buf = sock, b""

    def more(self):
        got = self.sock.recv(65536)
        if not got:
            raise EOFError
        self.buf += got

    def until(self, mark):
        while mark not in self.buf:
            self.more()
        head, self.buf = self.buf.split(mark, 1)
        return head

    def exactly(self, n):
        while len(self.buf) < n:
            self.more()
        data, self.buf = self.buf[:n], self.buf[n:]
        return data

    def reply(self, head_only=False):
        """(status, headers, body).  100 Continue is skipped."""
        while True:
            lines = self.until(b"\r\n\r\n").split(b"\r\n")
            first = lines[0].split(b" ", 2)
            if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
                raise Broken(f"not a status line: {lines[0][:80]!r}")
            status = int(first[1])
            if status != 100:
                break
        headers = {}
        for line in lines[1:]:
            k, sep, v = line.partition(b":")
            if not sep:
                raise Broken(f"not a header: {line[:80]!r}")
            headers[k.decode("latin-1").lower()] = v.strip().decode("latin-1")
        if head_only or status in (204, 304):
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while n := int(self.until(b"\r\n"), 16):
                parts.append(self.exactly(n))
                if self.exactly(2) != b"\r\n":
                    raise Broken("a chunk without its end")
            self.exactly(2)
            body = b"".join(parts)
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.buf
            try:
                while True:
                    self.more()
                    body = self.buf
            except EOFError:
                self.buf = b""
        return status, headers, body


def judge(status, headers, body):
    """What every reply must keep: no 500 but the declared one, errors in our shape."""
    if status < 400:
        return
    try:
        e = json.loads(body)["error"]
        code, message = e["code"], e["message"]
    except (ValueError, KeyError, TypeError) as why:
        raise Broken(f"status {status} with a body that is no error: {body[:120]!r}") from why
    if not message or status == 500 and code != "reply_too_large":
        raise Broken(f"status {status} {code}: {message}")


def call(port, method, path, body=None, timeout=60.0):
    """One well-behaved request on its own connection: (status, parsed JSON or text)."""
    data = json.dumps(body).encode() if body is not None else b""
    s = connect(port, timeout)
    try:
        s.sendall(request(method, path, data, ["Connection: close"]))
        status, headers, raw = Reader(s).reply()
        judge(status, headers, raw)
        return status, json.loads(raw) if "json" in headers.get("content-type", "") else raw.decode()
    finally:
        s.close()
