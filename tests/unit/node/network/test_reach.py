"""Listen and dial over loopback: an open port, a refusal, silence, and a datagram of full size."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.failure import Failure
from orchestrator.node.network import dial, listen
from orchestrator.protocol.ways import DialTarget


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Output(io.StringIO):
    """Stands for the pipe to the caller; a real file descriptor so that it can be polled."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    mine, theirs = socket.socketpair()
    output = Output(mine.fileno())
    monkeypatch.setattr(sys, "stdout", output)
    port = free_port()
    request = {"address": "127.0.0.1", "tcp_ports": [port], "seconds": 30, "rails": {"127.0.0.2": "lo"}}
    thread = threading.Thread(target=listen.stream, args=(request,))
    thread.start()
    deadline = time.monotonic() + 5
    while "\n" not in output.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield {"port": port, **json.loads(output.getvalue())["value"]}
    theirs.close()
    thread.join(timeout=5)
    assert not thread.is_alive(), "listen must end when its caller goes away"
    mine.close()


def outcome(**target: Any) -> str:
    (result,) = dial.answer({"targets": [{"kind": "tcp", "address": "127.0.0.1", "timeout_s": 0.5, **target}]})
    return str(result["outcome"])


def test_listeners_are_found_by_tcp_and_by_datagram(listening: dict[str, Any]) -> None:
    assert listening["tcp"] == {str(listening["port"]): "listening"}
    assert outcome(port=listening["port"]) == "open"
    assert outcome(port=listening["ephemeral"]) == "open"
    assert outcome(kind="mtu", port=listening["udp"]["127.0.0.1"], size=9000) == "open"
    assert outcome(kind="mtu", address="127.0.0.2", port=listening["rails"]["127.0.0.2"], size=1500) == "open"


def test_a_datagram_larger_than_the_interface_takes_is_too_big(listening: dict[str, Any]) -> None:
    assert outcome(kind="mtu", port=listening["udp"]["127.0.0.1"], size=65536 + 28) == "too-big"


def test_nobody_listening_is_a_refusal() -> None:
    assert outcome(port=free_port()) == "refused"
    assert outcome(kind="mtu", port=free_port(), size=1500) == "refused"


def test_a_full_backlog_that_never_answers_is_silence() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        assert outcome(port=port) == "silent"
        for sock in waiting:
            sock.close()


def test_a_request_without_a_port_is_told() -> None:
    with pytest.raises(Failure, match=r"DialRequest\.targets\.0 has no key 'port'"):
        dial.answer({"targets": [{"kind": "tcp", "address": "127.0.0.1"}]})


def test_what_passes_at_a_later_try_is_open() -> None:
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        port = late.getsockname()[1]
        opens = threading.Timer(0.3, late.listen)
        opens.start()
        (result,) = dial.answer(
            {"targets": [{"kind": "tcp", "address": "127.0.0.1", "port": port}], "tries": 200, "spacing_s": 0.05}
        )
        opens.join()
    assert result["outcome"] == "open" and result["tries"] > 1


def test_what_never_passes_is_tried_as_often_as_was_asked(listening: dict[str, Any]) -> None:
    targets = [
        {"name": name, "kind": "tcp", "address": "127.0.0.1", "port": port}
        for name, port in (("closed", free_port()), ("open", listening["port"]))
    ]
    results = dial.answer({"targets": targets, "tries": 3, "spacing_s": 0.01})
    assert {one["name"]: (one["outcome"], one["tries"]) for one in results} == {
        "closed": ("refused", 3),
        "open": ("open", 1),
    }


NEIGHBOURS = """IP address       HW type     Flags       HW address            Mask     Device
10.2.0.11        0x1         0x0         00:00:00:00:00:00     *        ens2
10.3.0.11        0x1         0x2         52:09:72:45:96:0c     *        ens2
10.3.0.11        0x1         0x0         00:00:00:00:00:00     *        ens3
"""


@pytest.mark.parametrize(
    ("address", "device", "said"),
    [
        ("10.2.0.11", "ens2", False),
        ("10.3.0.11", "ens2", True),
        ("10.3.0.11", "ens3", False),
        ("10.4.0.11", "ens2", True),
        ("10.2.0.11", "", True),
    ],
)
def test_whether_arp_was_answered_on_an_interface(
    address: str, device: str, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "arp"
    table.write_text(NEIGHBOURS)
    monkeypatch.setattr(dial, "_NEIGHBOURS", str(table))
    target = DialTarget(kind="tcp", address=address, port=1, device=device)
    assert dial._resolved(target) is said
    monkeypatch.setattr(dial, "_NEIGHBOURS", str(tmp_path / "missing"))
    assert dial._resolved(target)


ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100090A 0003 0 0 0 00000000 0 0 0
eth0 0000090A 00000000 0001 0 0 0 00FFFFFF 0 0 0
tun0 0000140A 00000000 0001 0 0 0 00FFFFFF 0 0 0
"""
ASKED_IN_VAIN = "IP address HW type Flags HW address Mask Device\n10.9.0.7 0x1 0x0 00:00:00:00:00:00 * eth0\n"
FLAGS = {"eth0": 0x1003, "tun0": 0x10D1}


@pytest.mark.parametrize(
    ("address", "said"),
    [("10.9.0.7", "silent"), ("10.9.0.8", "untried"), ("10.20.0.8", "silent"), ("192.0.2.1", "silent")],
    ids=["asked for in vain", "not even asked for", "a tunnel has no ARP", "behind a router"],
)
def test_an_address_that_the_kernel_has_no_place_for_is_not_silent(
    address: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("_ROUTES", ROUTES), ("_NEIGHBOURS", ASKED_IN_VAIN)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(dial, name, str(tmp_path / name))
    monkeypatch.setattr(dial, "_flags", FLAGS.__getitem__)
    target = DialTarget(name="node1", kind="tcp", address=address, port=1, timeout_s=0.0)
    attempt = dial._Attempt(target, started=0.0, deadline=1.0)
    with socket.socket() as sock:
        tried = dial._outcome(sock, attempt, answered=False, now=2.0)
    assert tried is not None and tried[1].outcome == said
