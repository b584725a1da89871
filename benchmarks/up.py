"""What `up` adds to the engine's own start: the same launch scripts started by hand over ssh, and by `up`.

Wanted: at most 2 s more from the first launch to the first healthy answer.
"""

from __future__ import annotations

import time

from by_hand import ByHand
from common import MODEL, command, lab, report, timed

RUNS = 3


def main() -> None:
    with lab("bench-up", "--level", "1") as inventory:
        hosts = ["-i", str(inventory)]
        gang = ByHand(inventory, MODEL)
        by_hand = min(_by_hand(gang) for _ in range(RUNS))
        ups = []
        for _ in range(RUNS):
            ups.append(timed(command("up", *hosts, "--model", MODEL), runs=1))
            timed(command("down", *hosts), runs=1)
        up = min(ups)
    report(
        "from nothing to the first healthy answer, 4 nodes and 32 stand-in ranks, best of 3",
        [
            ("launch scripts by hand over ssh", by_hand, ""),
            ("l40s-deploy up, whole process", up, f"{up - by_hand:+.2f} s, {up / by_hand:.2f} times"),
        ],
    )


def _by_hand(gang: ByHand) -> float:
    """Seconds from the first launch to the first healthy answer."""
    begin = time.monotonic()
    gang.start()
    try:
        gang.wait_healthy(120)
        return time.monotonic() - begin
    finally:
        gang.stop()


if __name__ == "__main__":
    main()
