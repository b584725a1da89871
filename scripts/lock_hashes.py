#!/usr/bin/env python3
"""Put the SHA-256 of every wheel that pip may take into the lock files of the stacks and the router.

    scripts/lock_hashes.py                                   # all of ours, for CPython 3.11 to 3.13
    scripts/lock_hashes.py --check                           # write nothing; exit 1 where a lock lacks a hash
    scripts/lock_hashes.py inventory/stacks/mine.lock --python 3.12 --find-links /srv/wheels

The versions stay: a lock is complete, and pip installs it with --no-deps. pip itself chooses the wheels, for each
Python and for old and new releases of glibc, in a dry run that downloads next to nothing (its feature fast-deps).
Hashes that a lock has already stay in it, since a place with the wheels of another Python may not be at hand here. Run
it after each change of a lock, with a Python whose pip is 24 or newer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_CHECKOUT / "src"))

from orchestrator.hosts.steps import bundle as locks  # noqa: E402
from orchestrator.hosts.steps.parts import platform_options  # noqa: E402

OURS = ("inventory/stacks/*.lock", "playbooks/roles/router_env/files/*.lock")
PYTHONS = ("3.11", "3.12", "3.13")
GLIBCS = (28, 34, 39)
"""Minor versions of glibc 2.x: of RHEL 8, of RHEL 9 and Ubuntu 22.04, of Ubuntu 24.04. Each may take another wheel."""
_ABSENT = re.compile(r"No matching distribution found for (\S+)")
_KNOWN = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_DEADLINE_S = 1800.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK", help="ours where none is named")
    parser.add_argument("--python", action="append", metavar="VERSION", help="3.12; again for another")
    parser.add_argument("--find-links", default="", metavar="PLACE", help="one more place to look")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    files = args.locks or [path for pattern in OURS for path in sorted(_CHECKOUT.glob(pattern))]
    if args.check:
        return _check(files)
    for file in files:
        lock = file.read_text("utf-8")
        found = _known(lock)
        for python in args.python or PYTHONS:
            for glibc in GLIBCS:
                for name, digest in _chosen(lock, python, glibc, args.find_links):
                    found.setdefault(name, set()).add(digest)
        fresh = locks.hashed(lock, found)
        file.write_text(fresh, "utf-8")
        print(f"{file}: {sum(map(len, found.values()))} hashes of {len(found)} packages")
    return _check(files)


def _check(files: Sequence[Path]) -> int:
    lacking = {file: locks.lacking(file.read_text("utf-8")) for file in files}
    for file, names in lacking.items():
        if names:
            print(f"{file} lacks hashes: {', '.join(names)}", file=sys.stderr)
    return 1 if any(lacking.values()) else 0


def _known(lock: str) -> dict[str, set[str]]:
    """Hashes that the lock has, by plain name."""
    joined = lock.replace("\\\n", " ").splitlines()
    return {
        locks.plain(pin["name"]): digests
        for line in joined
        if (pin := locks.PIN.match(line.strip())) and (digests := set(_KNOWN.findall(line)))
    }


def _chosen(lock: str, python: str, glibc: int, find_links: str) -> Iterator[tuple[str, str]]:
    """(plain name, SHA-256) of each wheel that pip takes there. A package without one for it is told, and left out."""
    wanted = [pin[0].strip() for pin in locks.pins(lock)]
    with tempfile.TemporaryDirectory() as folder:
        requirements, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        while wanted:
            requirements.write_text("\n".join(wanted), encoding="utf-8")
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"),
                    *("--only-binary=:all:", "--use-feature=fast-deps", "--quiet"),
                    *(f"--report={report}", f"--requirement={requirements}", f"--target={folder}/there"),
                    *platform_options(python, newest_glibc=glibc),
                    *([f"--find-links={find_links}"] if find_links else []),
                ],
                capture_output=True,
                text=True,
                timeout=_DEADLINE_S,
                check=False,
            )
            if done.returncode == 0:
                for one in json.loads(report.read_text(encoding="utf-8"))["install"]:
                    digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
                    yield locks.plain(one["metadata"]["name"]), digest
                return
            absent = _ABSENT.search(done.stderr)
            left = [pin for pin in wanted if absent is None or pin.partition(";")[0].strip() != absent[1]]
            if len(left) == len(wanted):
                raise SystemExit(f"pip failed: {done.stderr[-2000:]}")
            print(f"{absent[1] if absent else ''}: no wheel for Python {python} with glibc 2.{glibc}", file=sys.stderr)
            wanted = left


if __name__ == "__main__":
    sys.exit(main())
