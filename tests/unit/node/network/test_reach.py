"""listen and dial against each other on loopback: open, refused, silent, too big, and no port left in use after it."""

from __future__ import annotations

import json
import random
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.hostile import Strangers, resident_bytes
from tests.support.ports import free_port
from tests.support.waiting import until

from orchestrator.node.network import reach
from orchestrator.node.network.reach import MOST_CALLERS, dial
from orchestrator.protocol.looks import DialTarget

HERE = "127.0.0.1"
MOST_MEMORY = 16 << 20
LISTEN = "import json, sys; from orchestrator.node.network import reach; reach.stream(json.loads(sys.argv[1]))"


@contextmanager
def listening(**request: Any) -> Iterator[dict[str, Any]]:
    """Yields the listener's list of open ports; the listener ends with the test."""
    whole = json.dumps({"address": HERE, "seconds": 20, **request})
    with subprocess.Popen([sys.executable, "-c", LISTEN, whole], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["value"]
        finally:
            child.stdout.close()
            assert child.wait(5) == 0, "it ends when its caller goes away"


def target(kind: str, port: int, **more: Any) -> dict[str, Any]:
    return {"name": "node1", "kind": kind, "side": "tcp", "address": HERE, "port": port, "timeout_s": 2.0, **more}


def outcomes(*targets: dict[str, Any]) -> list[str]:
    said = {
        (one["kind"], one["port"], one.get("size") or 0): one["outcome"] for one in dial({"targets": list(targets)})
    }
    return [said[one["kind"], one["port"], one.get("size") or 0] for one in targets]


def test_open_refused_and_datagrams_by_either_interface() -> None:
    port, nobody, rail = free_port(), free_port(), "127.0.0.2"
    with listening(tcp_ports=[port], rails={rail: "lo"}) as opened:
        assert opened["tcp"] == {str(port): "listening"}
        echo = opened["udp"][HERE]
        assert outcomes(
            target("tcp", port),
            target("tcp", opened["ephemeral"]),
            target("tcp", nobody),
            target("mtu", echo, size=64),
            target("mtu", echo, size=9000),
            target("mtu", opened["rails"][rail], size=1500, address=rail),
            target("mtu", nobody, size=1500),
        ) == ["open", "open", "refused", "open", "open", "open", "refused"]
        (passed,) = dial({"targets": [target("tcp", port)]})
        assert 0 <= passed["ms"] < 2000


def test_a_datagram_that_the_way_can_not_carry_is_too_big() -> None:
    with listening() as opened:
        assert outcomes(target("mtu", opened["udp"][HERE], size=70_000)) == ["too-big"]


def test_a_port_that_was_tried_can_be_bound_at_once() -> None:
    """An engine binds without SO_REUSEADDR: a connection in TIME_WAIT would block it."""
    port = free_port()
    with listening(tcp_ports=[port]):
        assert set(outcomes(*[target("tcp", port)] * 8)) == {"open"}
    with socket.socket() as engine:
        engine.bind((HERE, port))


def test_any_bytes_at_its_ports_keep_nobody_from_his_answer_and_take_neither_memory_nor_descriptors() -> None:
    port = free_port()
    with listening(tcp_ports=[port], seconds=60) as opened, ExitStack() as idle:
        pid, echo = opened["pid"], opened["udp"][HERE]
        before = resident_bytes(pid)
        with (
            Strangers(HERE, port, 16, seed := secrets.randbelow(1 << 20)) as strangers,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        ):
            rng = random.Random(seed)
            for _ in range(2 * MOST_CALLERS):
                with suppress(OSError):  # one connection too many
                    idle.enter_context(socket.create_connection((HERE, port), timeout=20))
                datagrams.sendto(rng.randbytes(rng.randrange(1, 9000)), (HERE, echo))
            until(lambda: strangers.connections > 500, 20.0, lambda: f"seed {seed}: {strangers}")
            wanted = [target("tcp", port), target("mtu", echo, size=64)]
            until(lambda: outcomes(*wanted) == ["open", "open"], 10.0, lambda: f"seed {seed}: {outcomes(*wanted)}")
        assert resident_bytes(pid) - before < MOST_MEMORY, f"seed {seed}"
        assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < MOST_CALLERS + 32, f"seed {seed}"


def test_a_port_that_is_in_use_is_said_to_be_taken() -> None:
    with socket.socket() as engine:
        engine.bind((HERE, 0))
        engine.listen()
        port = int(engine.getsockname()[1])
        with listening(tcp_ports=[port]) as opened:
            assert opened["tcp"] == {str(port): "taken"}


def test_a_full_backlog_that_never_answers_is_silence() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        assert outcomes(target("tcp", port, timeout_s=0.5)) == ["silent"]
        for sock in waiting:
            sock.close()


def test_what_passes_at_a_later_try_is_open() -> None:
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        port = late.getsockname()[1]
        opens = threading.Timer(0.3, late.listen)
        opens.start()
        (result,) = dial({"targets": [target("tcp", port)], "tries": 200, "spacing_s": 0.05})
        opens.join()
    assert result["outcome"] == "open" and result["tries"] > 1


def test_what_never_passes_is_tried_as_often_as_was_asked() -> None:
    with listening(tcp_ports=[port := free_port()]):
        wanted = [target("tcp", free_port(), name="closed"), target("tcp", port, name="open")]
        results = dial({"targets": wanted, "tries": 3, "spacing_s": 0.01})
    said = {one["target"]: (one["outcome"], one["tries"]) for one in results}
    assert said == {"closed": ("refused", 3), "open": ("open", 1)}


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
    monkeypatch.setattr(reach, "_NEIGHBOURS", str(table))
    wanted = DialTarget(kind="tcp", address=address, port=1, device=device)
    assert reach._resolved(wanted) is said
    monkeypatch.setattr(reach, "_NEIGHBOURS", str(tmp_path / "missing"))
    assert reach._resolved(wanted)


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
        monkeypatch.setattr(reach, name, str(tmp_path / name))
    monkeypatch.setattr(reach, "_flags", FLAGS.__getitem__)
    wanted = DialTarget(name="node1", kind="tcp", address=address, port=1, timeout_s=0.0)
    attempt = reach._Attempt(wanted, started=0.0, deadline=1.0)
    with socket.socket() as sock:
        tried = reach._outcome(sock, attempt, answered=False, now=2.0)
    assert tried is not None and tried[1].outcome == said
