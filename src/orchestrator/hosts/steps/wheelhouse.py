"""The wheels of a lock, brought by pip into a folder: for this machine's Python or for another version of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from orchestrator.hosts.results import DIFFERS, HASHES_DIFFER
from orchestrator.model.errors import InputError, Unreachable

_OLDEST_GLIBC, _NEWEST_GLIBC = 5, 39
"""Minor versions of glibc 2.x: manylinux1 is 2.5 (PEP 513), Ubuntu 24.04 has 2.39."""


def download(
    lock: str, folder: Path, *, python: str, find_links: str, deadline_s: float, progress: Callable[[str], None]
) -> None:
    """Put a wheel of every package of the lock's text into `folder`.

    python:     major.minor that they are for
    find_links: one more place to look, beside those that pip is configured with; '' for none
    progress:   called with the name of each package as pip comes to it
    Raises InputError with pip's own words, Unreachable where it does not end in time.
    """
    requirements = folder / "requirements.txt"
    requirements.touch(mode=0o600)  # the place may hold a password
    requirements.write_text(_source(find_links) + lock)
    said: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        [*_PIP, *_target(python), f"--dest={folder}", f"--requirement={requirements}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "LC_ALL": "C.UTF-8"},
    ) as pip:
        hearing = threading.Thread(target=_hear, args=(pip, said, progress), daemon=True)
        hearing.start()
        try:
            status = pip.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"pip did not download all packages within {deadline_s:.0f} s",
                where="pip download",
                fix="try again with a longer --timeout; finished downloads stay in the cache",
            ) from None
        finally:
            pip.kill()
            hearing.join(5)
            requirements.unlink()
    if status != 0:
        reason = _reason(said)
        raise InputError(reason, where="pip download", fix=HASHES_DIFFER if DIFFERS in reason else _ANOTHER_PLACE)


_ANOTHER_PLACE = "add a package location with --find-links PLACE"
_PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off")


def _target(python: str) -> list[str]:
    return [] if python == f"{sys.version_info.major}.{sys.version_info.minor}" else platform_options(python)


def platform_options(python: str, *, newest_glibc: int = _NEWEST_GLIBC) -> list[str]:
    """Options for another Python than pip's own; pip then has to be told every kind of wheel that will do.

    python: major.minor; newest_glibc: minor version of glibc 2.x there
    """
    return [
        f"--python-version={python}",
        "--implementation=cp",
        *(f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")),
        *(f"--platform={name}" for name in platforms(newest_glibc)),
    ]


def platforms(newest_glibc: int = _NEWEST_GLIBC) -> list[str]:
    """Every platform that a wheel for this machine's processor may be for, newest C library first."""
    machine = platform.machine()
    glibc = [f"manylinux_2_{minor}_{machine}" for minor in range(newest_glibc, _OLDEST_GLIBC - 1, -1)]
    older = [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [*glibc, *older, f"linux_{machine}"]


def _source(find_links: str) -> str:
    if not find_links:
        return ""
    is_index = find_links.startswith(("http://", "https://")) and not find_links.endswith(".html")
    return f"--{'extra-index-url' if is_index else 'find-links'} {find_links}\n"


def _hear(pip: subprocess.Popen[str], said: deque[str], progress: Callable[[str], None]) -> None:
    assert pip.stdout is not None
    for line in pip.stdout:
        said.append(line.strip())
        if line.startswith(("Collecting ", "Processing ")):  # the second where the file lies on this machine
            progress(line.split()[1].rpartition("/")[2])


def _reason(said: deque[str]) -> str:
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return " | ".join(errors) or (said[-1] if said else "pip gave no reason")
