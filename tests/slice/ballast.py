"""Holds memory of GPUs, so that a card has no more left than a smaller one: `python ballast.py FREE_GIB [NUMBER ...]`.

By a Python that has torch. Takes the memory when a line comes in, says in JSON what it has taken, and ends when its
input ends.
"""

from __future__ import annotations

import json
import sys

GIB = 1 << 30


def main(free_gib: float, numbers: list[int]) -> None:
    """Of these GPUs, or of all."""
    import torch

    print("waiting", flush=True)
    if not sys.stdin.readline():
        return
    held, taken = [], []
    for number in numbers or range(torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{number}")
        free, total = torch.cuda.mem_get_info(number)
        held.append(torch.empty(free - int(free_gib * GIB), dtype=torch.uint8, device=f"cuda:{number}"))
        left = torch.cuda.mem_get_info(number)[0]
        taken.append({"gpu": number, "total": total, "left": left})
    print(json.dumps(taken), flush=True)
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main(float(sys.argv[1]), [int(word) for word in sys.argv[2:]])
