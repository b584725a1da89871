"""The server of metrics and pages under hostile load: proper requests are answered, whatever the others do."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.hostile import Strangers, resident_bytes
from tests.support.waiting import until

from orchestrator.monitoring.steps import http_server
from orchestrator.monitoring.steps.http_server import Page, is_named, names_of, serving
from orchestrator.protocol.errors import InputError

HERE = "127.0.0.1"
MOST = 16
MOST_MEMORY = 32 << 20
BIG = b"x" * (8 << 20)
"""More than the buffers of both sockets take."""
PAGES: http_server.Pages = {"/": lambda _: Page("hello"), "/big": lambda _: Page(BIG)}
KEY = "correct-horse"

NEVER_ENDING = {
    "nothing": b"",
    "a request line": b"GET /",
    "a header": b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ",
    "a body": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n",
    "chunks": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
    "an answer that is not read": b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.fixture
def port() -> Iterator[int]:
    with serving(PAGES, HERE, 0) as listening:
        yield listening


def asked(port: int, path: str = "/", method: str = "GET", **headers: str) -> int:
    """The status; 0 where there was no answer."""
    with (
        contextlib.closing(http.client.HTTPConnection(HERE, port, timeout=20)) as line,
        contextlib.suppress(OSError, http.client.HTTPException),
    ):
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        answer.read()
        return answer.status
    return 0


def is_open(line: socket.socket) -> bool:
    """After a byte more, as long as it takes one."""
    try:
        line.send(b"a", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


ODD = {
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01",
    "an address of its own": b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the path": b"GET /%00\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a host of bytes": b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    "a negative length": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1,2\r\n\r\naa",
    "a chunk of no size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a form of no charset": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Content-Type: application/x-www-form-urlencoded; charset=no\r\n\r\n%ff",
    "a form without a boundary": b'POST / HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary="\r\n'
    b"Content-Length: 3\r\n\r\nabc",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: x\r\n: x\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\n x: y\r\n\r\n",
    "a line that never fits": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("key", ["", KEY])
def test_an_odd_request_is_answered_or_closed_and_makes_no_line(
    kind: str, key: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(PAGES, HERE, 0, key=key) as port, socket.create_connection((HERE, port), timeout=20) as line:
        line.sendall(ODD[kind])
        told = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(4096):
                told += part
        assert told[:9] in (b"", b"HTTP/1.1 "), told
        assert b"hello" not in told or not key
        assert asked(port) == (401 if key else 200)
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize("apart", [False, True])
def test_who_will_send_no_more_still_gets_the_answer(apart: bool) -> None:
    """As `nc -N` asks; the end comes with the request, or while the answer is made."""
    begun, ends = threading.Event(), threading.Event()

    def page(_: str) -> Page:
        begun.set()
        assert ends.wait(20)
        return Page("x" * 300_000)

    with serving({"/": page}, HERE, 0) as port, socket.create_connection((HERE, port), timeout=20) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        if not apart:
            line.shutdown(socket.SHUT_WR)
        assert begun.wait(20)
        if apart:
            line.shutdown(socket.SHUT_WR)
        before = time.process_time()
        time.sleep(0.5)  # nothing spins meanwhile
        assert time.process_time() - before < 0.4
        ends.set()
        told = b""
        while part := line.recv(1 << 16):
            told += part
    assert told.startswith(b"HTTP/1.1 200 ") and told.endswith(b"x" * 300_000)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost"])
def test_who_ends_before_a_request_is_closed_at_once(said: bytes) -> None:
    with serving(PAGES, HERE, 0) as port, socket.create_connection((HERE, port), timeout=10) as line:
        line.sendall(said)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(100) == b""


@pytest.mark.parametrize("kind", NEVER_ENDING)
def test_who_never_ends_keeps_nobody_out_and_is_closed(kind: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S", 2.0)
    with ExitStack() as open_:
        lines = [open_.enter_context(socket.create_connection((HERE, port), timeout=20)) for _ in range(64)]
        for line in lines:
            line.sendall(NEVER_ENDING[kind])
        assert [asked(port) for _ in range(5)] == [200] * 5
        until(lambda: not any(list(map(is_open, lines))), 30.0, f"{kind}: all are closed though bytes come")
        assert asked(port) == 200


def test_one_address_takes_no_more_than_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_OF_ONE", 8)
    monkeypatch.setattr(http_server, "MOST_CLIENTS", MOST)
    with serving(PAGES, HERE, 0) as port, ExitStack() as open_:
        other = open_.enter_context(socket.create_connection((HERE, port), 20, source_address=("127.0.0.2", 0)))
        for number in range(4 * MOST):
            who = (f"127.0.1.{number % 4}", 0)
            open_.enter_context(socket.create_connection((HERE, port), 20, source_address=who))
        other.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200"), "the one that has one connection kept it"


def test_strangers_take_few_threads_descriptors_and_little_memory(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "MOST_CLIENTS", MOST)
    assert asked(port) == 200
    memory, threads, held = resident_bytes(os.getpid()), threading.active_count(), descriptors()
    seed = secrets.randbelow(1 << 20)
    with Strangers(HERE, port, 16, seed) as strangers:
        until(lambda: strangers.connections > 300, 20.0, lambda: f"seed {seed}: {strangers}")
        assert threading.active_count() <= threads + MOST + 2, f"seed {seed}"
        assert descriptors() <= held + MOST + 8, f"seed {seed}"
    until(lambda: asked(port) == 200, 10.0, f"seed {seed}")
    assert resident_bytes(os.getpid()) - memory < MOST_MEMORY, f"seed {seed}"
    assert capfd.readouterr() == ("", ""), f"seed {seed}"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_wrong_keys_are_slowed_down_and_a_right_one_still_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(http_server, "_sleep", sleep)
    with serving(PAGES, HERE, 0, key=KEY) as port:
        right = f"Bearer {KEY}"
        assert (asked(port), asked(port, Authorization=right), waited) == (401, 200, []), "no key is not a wrong one"
        for header in ("Bearer x", "Basic \xff", "\xff\xfe"):
            assert asked(port, Authorization=header) == 401
        assert waited == [http_server.WRONG_KEY_S] * 3
        assert asked(port, Authorization=right) == 200
        assert len(waited) == 4, "it is looked at only after a wait: a fast answer would tell the right one"
        monkeypatch.setattr(http_server, "WRONG_KEPT_S", 0.0)
        assert asked(port, Authorization=right) == 200
        assert len(waited) == 4


def said(port: int, method: str, path: str = "/") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer, whole."""
    with contextlib.closing(http.client.HTTPConnection(HERE, port, timeout=20)) as line:
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@pytest.mark.parametrize(
    ("method", "status"),
    [
        ("GET", 200),
        ("HEAD", 200),
        ("OPTIONS", 200),
        *((method, 405) for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "X")),
    ],
)
@pytest.mark.parametrize("path", ["/", "/none"])
def test_every_method_has_an_answer(
    method: str, status: int, path: str, port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    found, headers, body = said(port, method, path)
    missing = path == "/none" and method in ("GET", "HEAD")
    assert found == (404 if missing else status)
    assert (headers.get("allow") == "GET, HEAD, OPTIONS") == (method not in ("GET", "HEAD"))
    if method == "HEAD":
        assert body == b"" and int(headers["content-length"]) == len(said(port, "GET", path)[2])
    assert "Traceback" not in caplog.text + capfd.readouterr().err


@pytest.mark.parametrize(
    ("listens", "header", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:9", True),
        ("127.0.0.1", "localhost", True),
        ("::1", "[::1]:9", True),
        ("127.0.0.1", "evil.example:9", False),
        ("127.0.0.1", "10.0.0.5:9", False),
        ("10.0.0.5", "10.0.0.5:9", True),
        ("0.0.0.0", "[fd00::5]:9", True),
        ("10.0.0.5", "evil.example", False),
        ("10.0.0.5", f"{socket.gethostname()}:9", True),
        ("10.0.0.5", "", False),
    ],
)
def test_it_is_asked_for_by_its_own_names(listens: str, header: str, answered: bool) -> None:
    assert is_named(header, names_of(listens)) is answered


def test_what_is_no_page_or_fails_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    def breaks(_: str) -> Page:
        raise ValueError("broken")

    with serving({"/": breaks}, HERE, 0, names=("localhost",)) as port:
        assert asked(port, Host="evil.example:1") == 403
        assert asked(port, "/other", Host="localhost:1") == 404
        assert asked(port, method="POST", Host="localhost:1") == 405
        assert asked(port, Host="localhost:1") == 500
    assert "broken" in caplog.text


@pytest.mark.parametrize(
    ("accepted", "pressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("br, gzip ; q=0.0, x", False),
        ("identity", False),
    ],
)
def test_it_presses_what_is_wanted_so(accepted: str, pressed: bool, port: int) -> None:
    with contextlib.closing(http.client.HTTPConnection(HERE, port, timeout=20)) as line:
        line.request("GET", "/", headers={"Accept-Encoding": accepted})
        assert (line.getresponse().getheader("Content-Encoding") == "gzip") is pressed


def test_it_ends_at_once_whatever_it_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    asking, end = threading.Event(), threading.Event()

    def waits(_: str) -> Page:
        asking.set()
        end.wait(30)
        return Page("late")

    with serving({"/": waits}, HERE, 0) as port:
        threading.Thread(target=asked, args=(port,), daemon=True).start()
        assert asking.wait(20)
        begin = time.monotonic()
    assert time.monotonic() - begin < 20
    end.set()
    until(lambda: asked(port) == 0, 10, "it listens no more")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "fix"),
    [("127.0.0.1:9940", "ip -brief address"), ("192.0.2.1", "ip -brief address"), (HERE, "sport = :{port}")],
)
def test_where_it_cannot_listen_is_said_with_the_way_out(host: str, fix: str) -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="can't listen") as refused, serving(PAGES, host, port):
            pass
    assert fix.format(port=port) in refused.value.fix
