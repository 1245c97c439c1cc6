"""http_reply.py - one HTTP exchange whose server may die at any byte: replies and event streams, or Cut."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hostile"))
import net  # noqa: E402


class Cut(Exception):
    """The connection ended (or never began) before the reply did."""


class Silent(Exception):
    """Nothing came for as long as the timeout; streams send comments, so a living server is never silent."""


class Reply:
    """A request that was sent and the head of its reply.  Use as a context manager: leaving it hangs up."""

    def __init__(self, port, method, path, body=None, headers=(), timeout=30.0):
        self.sock = None
        try:
            self.sock = net.connect(port, timeout)
            data = json.dumps(body).encode() if body is not None else b""
            self.sock.sendall(net.request(method, path, data, [*headers, "Connection: close"]))
            self.reader = net.Reader(self.sock)
            lines = self.reader.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        except TimeoutError as e:
            self.close()
            raise Silent(f"{method} {path}: no head") from e
        except (OSError, EOFError) as e:
            self.close()
            raise Cut from e
        self.status = int(lines[0].split(" ")[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines[1:])}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.sock:
            self.sock.close()

    def _more(self, call, *args):
        try:
            return call(*args)
        except TimeoutError as e:
            raise Silent("the reply stopped") from e
        except (OSError, EOFError) as e:
            raise Cut from e

    def _chunks(self):
        if self.headers.get("transfer-encoding") != "chunked":
            yield self._more(self.reader.exactly, int(self.headers.get("content-length", 0)))
            return
        while size := int(self._more(self.reader.until, b"\r\n"), 16):
            yield self._more(self.reader.exactly, size)
            if self._more(self.reader.exactly, 2) != b"\r\n":
                raise net.Broken("a chunk without its end")

    def text(self):
        return b"".join(self._chunks()).decode()

    @property
    def is_stream(self):
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def events(self):
        """(number or None, data) of each whole event.  What a cut leaves of one is dropped, as an SSE client does."""
        buf, number = b"", None
        for chunk in self._chunks():
            buf += chunk
            while (at := buf.find(b"\n\n")) >= 0:
                block, buf = buf[:at].decode(), buf[at + 2:]
                data = None
                for line in block.split("\n"):
                    if line.startswith("id: ") and number is None and data is None:
                        number = int(line[4:])
                    elif line.startswith("data: ") and data is None:
                        data = line[6:]
                    elif not line.startswith(":"):
                        raise net.Broken(f"not a line of an event stream: {line[:200]!r}")
                if data is not None:
                    yield number, data
                    number = None
        if buf:
            raise net.Broken(f"a stream that ends inside an event: {buf[-200:]!r}")


def call(port, method, path, body=None, headers=(), timeout=30.0):
    """(status, parsed JSON, floats as their text)"""
    with Reply(port, method, path, body, headers, timeout) as r:
        return r.status, json.loads(r.text(), parse_float=str)
