"""`make fuzz`: so many odd files into every reader; a foreign exception is shown with what brings it again."""

from __future__ import annotations

import argparse
import random
import resource
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.targets import NESTED, Target, targets

from orchestrator.protocol.errors import DeployError

MEMORY = 3 << 30
"""Bytes of address space: a reader that takes what a file says there is fails here with MemoryError."""
SLOW_S = 5.0
"""Of processor time, for one file."""


def main() -> int:
    """0 where every answer was a value or words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--target", default="")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(f"{args.cases} cases, --seed {args.seed}", flush=True)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="l40s-fuzz-", dir=memory) as folder:
        chosen = [one for one in targets(Path(folder)) if not args.target or one.name == args.target]
        found = run(chosen, args.cases, args.seed, Path(folder))
    for words, count in found.most_common():
        print(f"{count} x {words}")
    return 1 if found else 0


def run(chosen: list[Target], cases: int, seed: int, folder: Path) -> Counter[str]:
    """Foreign exceptions and slow answers, by target, place and words."""
    found: Counter[str] = Counter()
    shares = sum(target.share for target in chosen)
    for target in chosen:
        file = folder / f"case.{target.suffix}"
        for number in range(max(len(NESTED), int(cases * target.share / shares))):
            rng = random.Random(f"{seed}/{target.name}/{number}")
            data = NESTED[number] if number < len(NESTED) else target.odd(rng, target.sound)
            file.write_bytes(data)
            if words := wrong(target, file):
                if not found[f"{target.name}: {words}"]:
                    print(f"case {number} of {target.name}: {data[:200]!r}", flush=True)
                found[f"{target.name}: {words}"] += 1
    return found


def wrong(target: Target, file: Path) -> str:
    """'' for a value or words."""
    began = time.process_time()
    in_words: tuple[type[Exception], ...] = (DeployError, *target.also)
    try:
        target.read(file)
    except in_words:
        pass
    except Exception as foreign:
        frames = traceback.extract_tb(foreign.__traceback__)
        ours = [one for one in frames if "/orchestrator/" in one.filename] or frames
        place = f"{ours[-1].filename.rpartition('/orchestrator/')[2]}:{ours[-1].lineno}"
        return f"{type(foreign).__name__} at {place}: {str(foreign)[:100]}"
    took = time.process_time() - began
    return f"took {SLOW_S:g} s and more" if took > SLOW_S else ""


if __name__ == "__main__":
    sys.exit(main())
