"""What reading weights ahead gains: a start with and without it, cold, on real files, in one run.

A stand-in for the engine does nothing on the disk for --before seconds (on 2 H100, rendezvous and NCCL take 24 s or
more: tests/gpu/measured.md), and then maps every file and touches all of it in --ranks processes, as safetensors does.
Before each start the files are dropped from the page cache (posix_fadvise, DONTNEED). The reader is the node's own.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import report

FILES = 8
CHUNK = 1 << 20


def make(folder: Path, gib: float) -> list[Path]:
    """Files of random bytes, on the disk."""
    paths = [folder / f"model-{number:05}.safetensors" for number in range(FILES)]
    block = os.urandom(CHUNK)
    for path in paths:
        with path.open("wb") as file:
            for _ in range(int(gib * 1024 / FILES)):
                file.write(block)
            os.fsync(file.fileno())
    return paths


def forget(paths: list[Path]) -> None:
    """None of their pages is cached."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def engine(paths: list[Path], before: float, ranks: int) -> None:
    """Wait, then read all in every rank."""
    time.sleep(before)
    children = []
    for _ in range(ranks):
        if (child := os.fork()) == 0:
            for path in paths:
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    for at in range(0, len(mapped), mmap.PAGESIZE):
                        mapped[at]
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def seconds(work: Callable[[], None]) -> float:
    """Wall time."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def main() -> int:
    """Print seconds and the ratio; exit 1 where reading ahead gains nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--before", type=float, default=24.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--disk", type=Path, default=Path.cwd())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.disk, prefix="l40s-benchmark-") as folder:
        paths = make(Path(folder), args.gib)
        order = json.dumps({"folder": folder})
        reader = [sys.executable, "-m", "orchestrator.node", "read-ahead", str(args.ranks), order]

        def ahead() -> None:
            process = subprocess.Popen(reader, stdout=subprocess.DEVNULL)
            engine(paths, args.before, args.ranks)
            process.kill()
            process.wait()

        def alone() -> None:
            engine(paths, args.before, args.ranks)

        found: dict[str, list[float]] = {"engine alone": [], "read ahead": []}
        for _ in range(args.rounds):
            for name, work in (("engine alone", alone), ("read ahead", ahead)):
                forget(paths)
                found[name].append(seconds(work))
    took = {name: statistics.median(one) for name, one in found.items()}
    ratio = took["engine alone"] / took["read ahead"]
    title = f"start of an engine, {args.gib:g} GiB of weights, {args.before:g} s before they are read"
    report(title, [(name, one, f"{took['engine alone'] / one:.2f}") for name, one in took.items()])
    return 0 if ratio > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
