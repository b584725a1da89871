"""What the benchmarks share: a lab of their own, whole-process timing, a table of ratios."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
MODEL = "DeepSeek-V3-0324-Block64x64"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its modules compiled


def command(*words: str) -> list[str]:
    """`l40s-deploy WORDS` of this environment."""
    return [str(BIN / "l40s-deploy"), *words]


def timed(argv: Sequence[str], *, runs: int, env: dict[str, str] | None = None) -> float:
    """Median wall seconds of a whole process over several runs; a run that fails ends the benchmark."""
    seconds = []
    for _ in range(runs):
        begin = time.monotonic()
        done = subprocess.run(
            argv, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300, check=False
        )
        seconds.append(time.monotonic() - begin)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return statistics.median(seconds)


@contextmanager
def lab(name: str, *words: str) -> Iterator[Path]:
    """A lab that is there for the duration; yields its inventory."""
    subprocess.run(command("lab", "up", "--name", name, *words), check=True, timeout=120, capture_output=True)
    try:
        status = subprocess.run(
            command("lab", "status", "--name", name, "--json"), check=True, timeout=60, capture_output=True, text=True
        )
        import json

        yield Path(json.loads(status.stdout)["inventory"])
    finally:
        subprocess.run(command("lab", "down", "--name", name), check=False, timeout=60, capture_output=True)


def report(title: str, rows: Sequence[tuple[str, float, str]]) -> None:
    """One table: what, seconds, ratio in words."""
    print(f"\n{title}")
    for what, seconds, ratio in rows:
        print(f"  {what:44} {seconds:8.3f} s  {ratio}")
