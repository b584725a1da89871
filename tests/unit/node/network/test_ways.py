"""listen and dial against each other on loopback: open, refused, too big, and no port left in use afterwards."""

from __future__ import annotations

import json
import random
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.hostile import Strangers, resident_bytes
from tests.support.waiting import until

from orchestrator.node.network.dial import answer as dial
from orchestrator.node.network.listen import MOST_CALLERS

HERE = "127.0.0.1"
MOST_MEMORY = 16 << 20
LISTEN = "import json, sys; from orchestrator.node.network import listen; listen.stream(json.loads(sys.argv[1]))"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


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
            child.terminate()


def target(kind: str, port: int, **more: Any) -> dict[str, Any]:
    return {"name": "node1", "kind": kind, "side": "tcp", "address": HERE, "port": port, "timeout_s": 2.0, **more}


def outcomes(*targets: dict[str, Any]) -> list[str]:
    said = {
        (one["kind"], one["port"], one.get("size") or 0): one["outcome"] for one in dial({"targets": list(targets)})
    }
    return [said[one["kind"], one["port"], one.get("size") or 0] for one in targets]


def test_open_refused_and_datagrams_of_two_sizes() -> None:
    port, nobody = free_port(), free_port()
    with listening(tcp_ports=[port]) as opened:
        assert opened["tcp"] == {str(port): "listening"}
        echo = opened["udp"][HERE]
        assert outcomes(
            target("tcp", port),
            target("tcp", opened["ephemeral"]),
            target("tcp", nobody),
            target("mtu", echo, size=64),
            target("mtu", echo, size=1500),
        ) == ["open", "open", "refused", "open", "open"]
        (passed,) = dial({"targets": [target("tcp", port)]})
        assert 0 <= passed["ms"] < 2000


def test_a_datagram_that_the_way_can_not_carry_is_too_big() -> None:
    with listening() as opened:
        assert outcomes(target("mtu", opened["udp"][HERE], size=70_000)) == ["too-big"]


def test_a_port_that_was_tried_can_be_bound_at_once() -> None:
    """An engine binds without SO_REUSEADDR: a connection in TIME_WAIT would block it."""
    port = free_port()
    with listening(tcp_ports=[port]):
        assert outcomes(*[target("tcp", port)] * 1) == ["open"]
        dial({"targets": [target("tcp", port) for _ in range(8)]})
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
