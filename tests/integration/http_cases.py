"""Requests that two parsers could read differently, and what a reference parser makes of them."""

import itertools
import random

import h11

BODY = b'{"content":"abc"}'
N = len(BODY)
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (N, BODY)

LENGTHS = [b"", b"Content-Length: %d" % N, b"Content-Length: %d, %d" % (N, N),
           b"Content-Length: +%d" % N, b"Content-Length: -1", b"Content-Length: 0x11",
           b"Content-Length: %d " % N, b"Content-Length:%d" % N, b"Content-Length : %d" % N,
           b"Content-Length: %d\r\nContent-Length: 0" % N, b"Content-Length: 1\x0b7",
           b"Content-Length: \xb2", b"Content-Length: 99999999999999999999"]
ENCODINGS = [b"", b"Transfer-Encoding: chunked", b"Transfer-Encoding: Chunked",
             b"Transfer-Encoding : chunked", b"Transfer-Encoding: xchunked",
             b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity, chunked",
             b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: chunked\r\n folded",
             b"X: y\rTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nTE: x",
             b"\x00Transfer-Encoding: chunked"]
CHUNK_SIZES = [b"%x", b"0%x", b"%x;a=b", b"%x ", b" %x", b"+%x", b"-%x", b"0x%x", b"%x\n", b"%x;\r",
               b"%x_", b"0000000000000000%x", b"%x\t"]
LINES = [b"GET /health HTTP/1.1\nHost: localhost\n\n", b"GET /health HTTP/1.1\r\nHost: a\rb\r\n\r\n",
         b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
         b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
         b"GET /health HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.9\r\nHost: localhost\r\n\r\n",
         b"GET /health HTTP/1.1\r\nHost: localhost\r\n Folded: x\r\n\r\n",
         b"GET /health\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\nA\r\n\r\n",
         b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: \x00\r\n\r\n",
         b"\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
         b"G\xc3\xa9T /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
         b"GET /health HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n"]


def cases():
    """More than 200, each followed by a second request that only one reading of the first finds."""
    out = []
    for length, encoding in itertools.product(LENGTHS, ENCODINGS):
        head = HEAD + b"".join(h + b"\r\n" for h in (length, encoding) if h) + b"\r\n"
        out.append(head + (CHUNKED if encoding else BODY if length else b"") + GET)
    for size in CHUNK_SIZES:
        out.append(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (size % N) + b"\r\n" + BODY +
                   b"\r\n0\r\n\r\n" + GET)
    for tail in (b"0\r\n\r\n", b"0\n\n", b"0\r\nX: y\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"-0\r\n\r\n"):
        out.append(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (N, BODY) + tail + GET)
    return out + [line + GET for line in LINES] + [GET * 3, HEAD + b"Content-Length: %d\r\n\r\n" % N + BODY]


def mutants(n, seed):
    """Cases with some bytes changed, cut out, doubled or put elsewhere."""
    rng, base = random.Random(seed), cases()
    for _ in range(n):
        data = bytearray(rng.choice(base))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            what = rng.randrange(4)
            if what == 0:
                data[at] = rng.choice(b"\r\n\t \x00:;,0159azAZ\x0b\x80\xff")
            elif what == 1:
                del data[at:at + rng.randint(1, 4)]
            elif what == 2:
                data[at:at] = data[at:at + rng.randint(1, 8)]
            else:
                data[at:at] = rng.choice((b"\r\n", b"\n", b" ", b"\r", b"\x00"))
            if not data:
                data = bytearray(b"x")
        yield bytes(data)


def read_one_by_h11(data):
    """(method, target, body), bytes behind it, whether another may follow; None: no whole request."""
    connection = h11.Connection(h11.SERVER)
    # An empty line before a request is to be passed over (RFC 9112, 2.2); h11 refuses it.
    connection.receive_data(data.removeprefix(b"\r\n"))
    try:
        request, body = connection.next_event(), b""
        while isinstance(request, h11.Request):
            event = connection.next_event()
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return ((request.method.decode(), request.target.decode(), body),
                        connection.trailing_data[0], connection.their_state is h11.DONE)
            else:
                return None
    except h11.RemoteProtocolError:
        pass
    return None


def read_by_h11(data):
    """The whole requests before the first that h11 refuses or waits for more of."""
    found = []
    while one := read_one_by_h11(data):
        found.append(one[0])
        data = one[1]
        if not one[2]:
            break
    return found


def answers(data):
    """Status and body of each answer in what a server sent."""
    out = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        length = next(int(x.split(b":")[1]) for x in lines if x.lower().startswith(b"content-length:"))
        out.append((int(lines[0].split()[1]), rest[:length]))
        data = rest[length:]
    return out
