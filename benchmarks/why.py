"""`why --log`: its processor time for a log, as a ratio to `grep -E` over the same file in the same run.

The log repeats a recorded one of the real SGLang between lines of decoding, requests and NCCL. `--mb N` changes its
size; with `--returns` its lines end with carriage returns, as progress bars' do.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests/unit/engines/logs/sglang-0.5.23-cpu/worker-killed.leader.log"
WORDS = r"error|Error|failed|Failed|Exception|Traceback|NCCL WARN|timed out|out of memory|refused|killed|Xid"
RUNS = 5


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--mb", type=int, default=4, help="size of the log (default: 4)")
    asked.add_argument("--returns", action="store_true", help="lines end with carriage returns")
    given = asked.parse_args()
    megabytes, end = given.mb, "\r" if given.returns else "\n"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"
        log.write_text(end.join(lines(megabytes << 20)))
        empty = Path(folder) / "empty.log"
        empty.write_text("")
        why = [sys.executable, "-m", "orchestrator.cli.main", "why", "--log"]
        start = least([*why, str(empty)])
        own = least([*why, str(log)]) - start
        grep = least(["grep", "-cE", WORDS, str(log)])
    print(
        f"why --log: {own / megabytes:.3f} s of processor a MB, {own / grep:.0f} times `grep -E`; start {start:.2f} s"
    )


def lines(size: int) -> Iterator[str]:
    """Of a log of about so many bytes."""
    dice = random.Random(1)
    recorded = RECORDED.read_text().split("\n")
    while size > 0:
        made = (
            dice.choice(recorded),
            f"[2025-11-26 10:02:11 TP{dice.randrange(8)}] Decode batch. #running-req: {dice.randrange(99)}, #token: 1",
            '[2025-11-26 10:02:15] INFO:     10.0.0.9:41522 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
            f"node1:{dice.randrange(9999)}:275658 [4] NCCL INFO Channel 01/0 : 3[3] -> 4[4] [send] via NET/IB/0/GDRDMA",
        )
        yield from made
        size -= sum(len(line) + 1 for line in made)


def least(command: list[str]) -> float:
    """Processor seconds of the quickest of some runs."""
    return min(spent(command) for _ in range(RUNS))


def spent(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
