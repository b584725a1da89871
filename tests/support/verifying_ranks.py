"""Two ranks of a network test on one machine, as the product runs them, with or without a flipped bit.

python -m tests.support.verifying_ranks cuda 20     # by a Python that has torch; prints JSON
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.nettest.messages import NettestLine, NettestStep, RanksOrder
from orchestrator.nettest.nettest_report import Verification, verified
from orchestrator.nettest.schedule import LARGE, Place, schedule, verification

ROOT = Path(__file__).parents[2]
PLACES = (Place(node="node0", ranks=(0, 1), gpus=(0, 1)),)
"""As of GPUs on CPUs too: their sizes."""
HIDDEN = 7168
STEPS = tuple(replace(step, box_s=60.0) for step in verification(PLACES, HIDDEN))
"""With all bytes, however busy the machine is."""


def run(
    python: str | Path, steps: Sequence[NettestStep], *, env: Mapping[str, str], device: str = "cpu", slack: float = 1.0
) -> list[dict[str, Any]]:
    """The ranks' lines. Raises RuntimeError with them where a rank fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    order = RanksOrder(ranks=(0, 1), world=2, host="127.0.0.1", port=port, device=device, steps=tuple(steps),
                       reach_s=60.0 * slack, timeout_s=60.0 * slack)  # fmt: skip
    reads, writes = os.pipe()
    ranks = subprocess.Popen(
        [python, ROOT / "templates/nettest.py", str(writes), "/dev/stdin"],
        stdin=subprocess.PIPE,
        pass_fds=[writes],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests/support/flipping"), "GLOO_SOCKET_IFNAME": "lo", **env},
    )
    os.close(writes)
    assert ranks.stdin is not None
    ranks.stdin.write(json.dumps(order.as_json()).encode())
    ranks.stdin.close()
    with os.fdopen(reads) as said:
        lines = [json.loads(line) for line in said]
    if ranks.wait(timeout=60 * slack):
        raise RuntimeError(str(lines))
    return lines


def found_in(lines: Sequence[dict[str, Any]]) -> Verification:
    """What they say of their data."""
    seen = [NettestLine(**{key: line[key] for key in ("step", "group", "rank", "bytes", "wrong")}) for line in lines
            if "wrong" in line]  # fmt: skip
    seconds = max(line["seconds"] for line in lines if line.get("done", -1) in range(len(STEPS)))
    return verified(STEPS, seen, PLACES, seconds)


def flips(count: int) -> list[str]:
    """FLIP_BYTE of so many single bytes of 64 MiB, in both directions: the last one, the first one, others."""
    places = [0, LARGE - 1, *(random.Random(7).randrange(LARGE) for _ in range(count))][:count]
    return [f"{number % 2},{1 - number % 2},{place},{LARGE}" for number, place in enumerate(places)]


def main(device: str, count: int) -> int:
    """Prints what was found; 0 where each flipped byte was found, and none without one."""

    def one(steps: Sequence[NettestStep] = STEPS, **env: str) -> list[dict[str, Any]]:
        began = time.monotonic()
        said = run(sys.executable, steps, device=device, env=env)
        print(f"{time.monotonic() - began:.1f} s {env}", file=sys.stderr, flush=True)
        return said

    timed = schedule(PLACES, HIDDEN, len(STEPS))
    ends = {
        what: [max(line.get("seconds", 0.0) for line in one(steps)) for _ in range(3)]
        for what, steps in (("timed", schedule(PLACES, HIDDEN)), ("verified and timed", (*STEPS, *timed)))
    }
    other_way = found_in(one(NCCL_P2P_DISABLE="1")).as_json()
    sums = found_in(one(FLIP_BYTE=f"-1,1,77,{LARGE}")).as_json()
    flipped = [(flip, found_in(one(FLIP_BYTE=flip)).as_json()) for flip in flips(count)]
    right = [found_in(one()).as_json() for _ in range(count)]
    named = [
        [(pair["from"][-1], pair["to"][-1], pair["bytes"]) for pair in found["corrupt"]] == [(flip[0], flip[2], 1)]
        for flip, found in flipped
    ]
    wrong_sums = [pair["from"] for pair in sums["corrupt"]] == ["all-reduce of all ranks"]
    fine = all(one["verdict"] == "ok" for one in (*right, other_way))
    print(json.dumps({
        "right": sum(one["verdict"] == "ok" for one in right), "named": sum(named), "of": count, "sums": sums,
        "without_p2p": other_way, "verification_s": [one["seconds"] for one in right], "least": right[0]["least_bytes"],
        "measuring_s": ends, "flipped": flipped[:2],
    }, indent=1))  # fmt: skip
    return 0 if fine and all(named) and wrong_sums else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
