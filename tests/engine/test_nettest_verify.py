"""The ranks of a network test compare what they receive: one flipped byte of 64 MiB is found, and never without one.

The ranks are the product's own, with the stack's torch over Gloo and the sizes of GPUs; `tests/support/flipping` plants
the flipped bit behind them.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import slack

from orchestrator.lab.engine.environment import ensure_engine
from orchestrator.nettest.schedule import LARGE, Place, verification
from orchestrator.nettest.verification import Compared, Verification, verified
from orchestrator.protocol.nettest import ALL_REDUCE, PAIRS, RanksOrder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
FLIPPING = ROOT / "tests/support/flipping"
PLACES = (Place(node="node0", ranks=(0, 1), gpus=(0, 1)),)
STEPS = verification(PLACES, 64)
RUNS = 20


@cache
def python() -> Path:
    return ensure_engine() / "bin/python3"


def verify(*, flip: str = "", device: str = "cpu") -> tuple[Verification, list[dict[str, Any]]]:
    """What two ranks of this machine find, and their lines."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    order = RanksOrder(ranks=(0, 1), world=2, host="127.0.0.1", port=port, device=device, steps=STEPS,
                       reach_s=60.0 * slack(), timeout_s=60.0 * slack())  # fmt: skip
    reads, writes = os.pipe()
    ranks = subprocess.Popen(
        [python(), ROOT / "templates/nettest.py", str(writes)],
        stdin=subprocess.PIPE,
        pass_fds=[writes],
        env={**os.environ, "PYTHONPATH": str(FLIPPING), "FLIP_BYTE": flip, "GLOO_SOCKET_IFNAME": "lo"},
    )
    os.close(writes)
    assert ranks.stdin is not None
    ranks.stdin.write(json.dumps(order.as_json()).encode())
    ranks.stdin.close()
    with os.fdopen(reads) as said:
        lines = [json.loads(line) for line in said]
    assert ranks.wait(timeout=60) == 0, lines
    seen = [Compared(**{key: line[key] for key in ("step", "group", "rank", "bytes", "wrong")}) for line in lines
            if "wrong" in line]  # fmt: skip
    seconds = max(line["seconds"] for line in lines if "done" in line)
    return verified(STEPS, seen, PLACES, seconds), lines


def healthy() -> None:
    found, lines = verify()
    assert not found.corrupt and found.pairs == 2 and found.least > LARGE
    said = {(line["step"], line["rank"]) for line in lines if "wrong" in line}
    assert said == {(step.id, rank) for step in STEPS for group in step.groups
                    for rank in (group if step.kind == ALL_REDUCE else group[1:])}  # fmt: skip


def flipped(start: int, place: int) -> None:
    """In the largest transfers alone."""
    found, lines = verify(flip=f"{start},{1 - start},{place},{LARGE}")
    assert [(str(one), one.bytes) for one in found.corrupt] == [(f"node0 GPU {start} to node0 GPU {1 - start}", 1)]
    kinds = {STEPS[line["step"]].kind for line in lines if "wrong" in line}
    assert kinds == {PAIRS}, "sums are not tried through a link that corrupts data"


def test_right_data_is_right() -> None:
    healthy()


@pytest.mark.parametrize(("start", "place"), [(0, 0), (1, LARGE - 1)])
def test_one_flipped_byte_of_64_mib_is_found(start: int, place: int) -> None:
    """The last byte, which is in no whole word, and one of the first words."""
    flipped(start, place)


def test_a_wrong_sum_is_found_where_every_pair_is_right() -> None:
    found, _ = verify(flip=f"-1,1,77,{LARGE}")
    assert [(str(one), one.bytes) for one in found.corrupt] == [("all-reduce of all ranks to node0 GPU 1", 1)]
    assert found.pairs == 2


@pytest.mark.long
def test_a_flipped_byte_is_found_every_time_and_none_without_one() -> None:
    chosen = random.Random(7)
    for number in range(RUNS):
        healthy()
        flipped(number % 2, chosen.randrange(LARGE))
