"""The HTTP server of `exporter`, `guard --metrics` and `web`: strangers keep nobody else out, whatever they send or how
slowly. Tornado's, since it has a deadline for all headers together and needs no thread for a connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import gzip
import hmac
import http
import ipaddress
import logging
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError

from orchestrator.protocol.errors import InputError
from orchestrator.remote.deadline import ahead

MOST_CLIENTS = 256
"""Connections at a time; other descriptors are for the connections to the nodes. A new one ends the oldest of the
address that has the most: who asks is answered, who waits gives way."""
MOST_OF_ONE = 64
"""Of them, from one address."""
REQUEST_S = 15.0
"""For a whole request, and again for its body, however it comes."""
CONNECTION_S = 60.0
"""For a connection, its answer read included."""
WRONG_KEY_S = 1.0
"""What a wrong key waits for its answer. For WRONG_KEPT_S after it every key from that address waits as long before it
is looked at, so that an address has MOST_OF_ONE tries in that time."""
WRONG_KEPT_S = 30.0
_sleep = asyncio.sleep
_MOST_REQUEST = 16 << 10
_ENDS_HEADERS = b"\r\n\r\n"
_METHODS = "GET, HEAD, OPTIONS"
_GZIP = re.compile(r"(?i)\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")
"""Wanted: not with a weight of zero (RFC 9110, 12.4.2)."""
_PRESSED = 3
"""gzip's level: a tenth of the bytes for some 0.5 ms."""


@dataclass(frozen=True, slots=True)
class Page:
    """kind: its Content-Type."""

    body: str | bytes
    kind: str = "text/plain; charset=utf-8"
    status: int = http.HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Pages = Mapping[str, Callable[[str], Page]]
"""By path: the answer for the request's Accept header; called in a thread of its own."""


@contextlib.contextmanager
def serving(pages: Pages, host: str, port: int, *, key: str = "", names: Collection[str] = ()) -> Iterator[int]:
    """Answer GET, HEAD and OPTIONS within, in threads of its own; gives the port (where 0 was asked for).

    key: asked for where it is not ''; names: by which the server may be asked for (`names_of`), any where there are
    none. Raises InputError where it can't listen.
    """
    listener = _listener(host, port)
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    logging.getLogger("tornado").setLevel(logging.CRITICAL)  # a stranger's request is not worth a line

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(_serve(_Desk(pages, key, names), listener, over))
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(2.0)


async def _serve(desk: _Desk, listener: socket.socket, over: asyncio.Event) -> None:
    """Until it is over; connections that last too long are ended meanwhile."""
    server = _Server(
        desk.take,
        no_keep_alive=True,
        idle_connection_timeout=REQUEST_S,
        body_timeout=REQUEST_S,
        max_header_size=_MOST_REQUEST,
        max_body_size=_MOST_REQUEST,
    )
    server.add_socket(listener)
    while not over.is_set():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), 1.0)
        server.end_old()
    server.stop()
    await server.close_all_connections()


class _HalfOpenStream(IOStream):
    """A client that has said that it will send nothing more still reads its answer (RFC 9112, 9.6: `nc -N`); Tornado's
    own streams close then. One that ends before its request is complete is closed."""

    _heard_all = _asked = False
    _last = b""

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """As Tornado's: None for nothing yet, 0 to be closed."""
        count = super().read_from_fd(buf)
        length = count or 0
        heard = self._last + bytes(buf[:length])
        self._asked = self._asked or _ENDS_HEADERS in heard
        self._last = heard[-3:]
        self._heard_all = self._heard_all or count == 0
        return None if count == 0 and self._asked else count

    def _handle_events(self, fd: Any, events: int) -> None:
        """The end of a stream can be read for ever."""
        super()._handle_events(fd, events)
        if self._heard_all and not self.closed() and (self._state or 0) & self.io_loop.READ:
            self._state = (self._state or 0) & ~self.io_loop.READ
            self.io_loop.update_handler(self.fileno(), self._state)


class _Server(HTTPServer):
    """Connections that are bounded in number and time."""

    def initialize(self, *words: Any, **more: Any) -> None:
        """As Tornado makes its servers."""
        super().initialize(*words, **more)
        self._open: dict[IOStream, tuple[str, float]] = {}

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Take a new connection, in the place of another one where there are too many."""
        self.end_old()
        who, counts = str(address[0]), Counter(peer for peer, _ in self._open.values())
        if counts[who] >= MOST_OF_ONE:
            self._end_oldest_of(who)
        elif len(self._open) >= MOST_CLIENTS:
            self._end_oldest_of(counts.most_common(1)[0][0])
        stream = _HalfOpenStream(
            stream.socket, max_buffer_size=stream.max_buffer_size, read_chunk_size=stream.read_chunk_size
        )
        self._open[stream] = who, time.monotonic()
        super().handle_stream(stream, address)

    def end_old(self) -> None:
        """Close what has had its time, and forget what is closed."""
        for stream, (_, since) in list(self._open.items()):
            if time.monotonic() - since > CONNECTION_S:
                stream.close()
            if stream.closed():
                del self._open[stream]

    def _end_oldest_of(self, who: str) -> None:
        stream = next(open_stream for open_stream, (its, _) in self._open.items() if its == who)
        stream.close()
        del self._open[stream]


class _Desk:
    """Who may have which page."""

    def __init__(self, pages: Pages, key: str, names: Collection[str]) -> None:
        self._pages, self._key, self._names = pages, key, names
        self._wrong: dict[str, float] = {}
        """When an address last gave a wrong key."""
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, request: HTTPServerRequest) -> None:
        """Answer a request, aside."""
        task = asyncio.ensure_future(self._serve(request))
        self._tasks.add(task)  # a loop keeps its tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: HTTPServerRequest) -> None:
        answer = await self._answer(request)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        headers = HTTPHeaders({"Content-Type": answer.kind, "Connection": "close", **answer.headers})
        if body and _GZIP.search(request.headers.get("Accept-Encoding", "")):  # a forwarded port may be slow
            body, headers["Content-Encoding"] = gzip.compress(body, _PRESSED), "gzip"
        headers["Content-Length"] = str(len(body))
        start = ResponseStartLine("HTTP/1.1", answer.status, http.HTTPStatus(answer.status).phrase)
        written = None if request.method == "HEAD" else body  # of HEAD the length alone is answered
        assert request.connection is not None
        with contextlib.suppress(StreamClosedError):
            await request.connection.write_headers(start, headers, written)
            request.connection.finish()

    async def _answer(self, request: HTTPServerRequest) -> Page:
        if (refused := await self._refused(request)) is not None:
            return refused
        page = self._pages.get(request.path)
        if request.method == "OPTIONS":
            return Page("", headers={"Allow": _METHODS})
        if request.method not in ("GET", "HEAD"):
            return Page(f"only {_METHODS}\n", status=405, headers={"Allow": _METHODS})
        if page is None:
            return Page("no such page\n", status=404)
        try:
            accept = request.headers.get("Accept", "")
            return await asyncio.wrap_future(ahead(lambda: page(accept)))
        except Exception:
            logging.getLogger(__name__).exception("%s could not be answered", request.path)
            return Page("this is a defect of l40s-deploy; its terminal says more\n", status=500)

    async def _refused(self, request: HTTPServerRequest) -> Page | None:
        # a name that leads to loopback is how another site's page would read this one (DNS rebinding)
        if self._names and not is_named(request.headers.get("Host", ""), self._names):
            return Page(f"ask for it by {' or '.join(sorted(self._names))}\n", status=403)
        if not self._key:
            return None
        given, who = request.headers.get("Authorization", ""), request.remote_ip or ""
        slow = time.monotonic() - self._wrong.get(who, float("-inf")) < WRONG_KEPT_S
        if slow and given:
            await _sleep(WRONG_KEY_S)
        if has_key(given, self._key):
            return None
        if given:
            since = time.monotonic() - WRONG_KEPT_S
            self._wrong = {peer: at for peer, at in self._wrong.items() if at > since} | {who: time.monotonic()}
            if not slow:
                await _sleep(WRONG_KEY_S)
        return Page("the key is missing or wrong\n", status=401, headers={"WWW-Authenticate": "Basic realm=l40s"})


ANY_ADDRESS = "its address"
"""Among the names of a server: any IP address. No other site's page can be asked for by one."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def names_of(host: str) -> frozenset[str]:
    """By which a server that listens on this address may be asked for: on loopback the local names alone, else any
    address and the names of this machine."""
    if f"[{host}]" in LOCAL_NAMES or host in LOCAL_NAMES:
        return LOCAL_NAMES
    own = {socket.gethostname(), socket.gethostname().partition(".")[0], socket.getfqdn()}
    return LOCAL_NAMES | {ANY_ADDRESS, *(name.lower() for name in own if name)}


def is_named(header: str, names: Collection[str]) -> bool:
    """Whether a request's Host is one of the names, with a port or without."""
    name = re.sub(r":\d{1,5}$", "", header).lower()
    if name in names:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return ANY_ADDRESS in names


def has_key(header: str, key: str) -> bool:
    """Basic, as a browser asks for it, with any user name; or Bearer. header: any bytes, as latin-1."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
        except ValueError:
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(value.encode("utf-8", "replace"), key.encode())


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as failure:
        listener.close()
        fix = f"choose another port, or stop the listener: ss -ltnp 'sport = :{port}'"
        if isinstance(failure, socket.gaierror) or failure.errno == errno.EADDRNOTAVAIL:
            fix = "name an address of this machine: `ip -brief address` lists them"
        raise InputError(f"can't listen: {failure.strerror or failure}", where=f"{host}:{port}", fix=fix) from None
    return listener
