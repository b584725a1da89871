"""Kills of serving ranks that die as CUDA's processes do: how often `status` names the right node, rank and signal.

A lab of four nodes with `--deaths cuda` at 1, 2 and 8 GPUs a node. The gang is started, a rank is killed by
`lab break NODE kill-rank R`, `status` is asked until it names a cause, and the gang is started again; the ranks take
turns. Wanted: right in 100 of 100 at each shape. `--kills N` for fewer, `--gpus N` for one shape.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.small_lab import SmallLab, described, small_lab

SHAPES = (1, 2, 8)
"""GPUs a node."""
NODES = 4
NAMED_S = 15.0
SPEED = {"STANDIN_SPEED": "0.02"}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=100, help="at each shape (default: 100)")
    asked.add_argument("--gpus", type=int, action="append", choices=(1, 2, 4, 8), help="a node (default: 1, 2 and 8)")
    asked.add_argument("--deaths", default="cuda", choices=("plain", "cuda"))
    args = asked.parse_args()
    wrong = 0
    for gpus in args.gpus or SHAPES:
        found = list(kills(gpus, args.kills, args.deaths))
        right = sum(not words for words in found)
        wrong += len(found) - right
        print(f"{NODES} nodes x {gpus} GPUs, deaths {args.deaths}: right in {right} of {len(found)}", flush=True)
    return 1 if wrong else 0


def kills(gpus: int, count: int, deaths: str) -> Iterator[str]:
    """What is wrong with each kill's cause, '' where it is right."""
    shape = described(f"causes{gpus}", nodes=NODES, gpus=gpus, deaths=deaths, env=SPEED)
    with small_lab(shape.name, of=shape) as lab:
        for turn in range(count):
            rank = turn * (2 * gpus + 1) % (gpus * NODES)
            words = strike(lab, rank)
            if words:
                print(f"  kill {turn + 1}, TP{rank} of node{rank // gpus}: {words}", flush=True)
            yield words


def strike(lab: SmallLab, rank: int) -> str:
    """Start the gang, kill a rank; what is wrong with the cause that `status` names."""
    lab.serve()
    node = f"node{rank // lab.gpus}"
    lab.run("break", node, "kill-rank", str(rank))
    cause = named(lab)
    lab.deploy("down", "--now")
    if cause is None:
        return f"no cause within {NAMED_S:g} s"
    found = (cause["node"], cause["tp_rank"], cause["signal"])
    return "" if found == (node, rank, signal.SIGKILL) else f"named {found}: {cause['text']}"


def named(lab: SmallLab) -> dict[str, Any] | None:
    """The failed gang's cause, waited for."""
    end = time.monotonic() + NAMED_S
    while time.monotonic() < end:
        gang = lab.gang()
        if gang["state"] == "failed":
            cause: dict[str, Any] | None = gang["cause"]
            return cause
    return None


if __name__ == "__main__":
    sys.exit(main())
