"""The server of metrics and pages under hostile load: few threads and descriptors; proper requests are answered."""

from __future__ import annotations

import http.client
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile import Strangers, resident_bytes
from tests.support.waiting import until

from orchestrator.model.errors import InputError
from orchestrator.monitoring.steps import http_server

HERE = "127.0.0.1"
MOST = 8
MOST_MEMORY = 32 << 20


def hello(_: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_server, "MOST_CLIENTS", MOST)
    monkeypatch.setattr(http_server._Handler, "timeout", 1.0)
    server = http_server.listen(hello, HERE, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(10)


def answered(port: int) -> bool:
    line = http.client.HTTPConnection(HERE, port, timeout=20)
    try:
        line.request("GET", "/")
        return line.getresponse().read() == b"hello"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        line.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_strangers_take_few_threads_and_an_answer_comes_once_they_are_silent(port: int) -> None:
    assert answered(port)
    memory, threads = resident_bytes(os.getpid()), threading.active_count()
    seed = secrets.randbelow(1 << 20)
    with ExitStack() as idle:
        for _ in range(3 * MOST):
            idle.enter_context(socket.create_connection((HERE, port), timeout=20))
        held = descriptors()
        with Strangers(HERE, port, 16, seed) as strangers:
            until(lambda: strangers.connections > 300, 20.0, lambda: f"seed {seed}: {strangers}")
            assert threading.active_count() <= threads + MOST + 2, f"seed {seed}"
            assert descriptors() <= held + MOST + 8, f"seed {seed}"
        until(lambda: answered(port), 10.0, f"seed {seed}: answered although {3 * MOST} connections say nothing")
    assert resident_bytes(os.getpid()) - memory < MOST_MEMORY, f"seed {seed}"


@pytest.mark.parametrize(
    ("host", "words", "fix"),
    [
        ("127.0.0.1:9940", "no address of this machine", "the port goes to --port"),
        ("192.0.2.1", "can't listen", "ip -brief address"),
    ],
)
def test_where_it_cannot_listen_is_said_with_the_way_out(host: str, words: str, fix: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        http_server.listen(hello, host, 9940)
    assert fix in refused.value.fix


def test_a_taken_port_names_the_command_that_finds_its_listener() -> None:
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="can't listen") as refused:
            http_server.listen(hello, HERE, port)
    assert f"sport = :{port}" in refused.value.fix
