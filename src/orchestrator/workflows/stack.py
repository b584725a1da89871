"""`stack build`: a stack's packages as one file, for nodes that reach no package index."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.host_setup import debian, wheelhouse
from orchestrator.host_setup.bundle import Bundle, pins, write_bundle
from orchestrator.loading.stacks import load_stack, stack_lock
from orchestrator.model.errors import InputError
from orchestrator.model.profile import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build.

    python: None is the stack's own; find_links: '' leaves it to pip's configuration
    debian: the Debian packages that `prepare` installs come along, of this machine's release
    debian_packages: these, beside the stack's and Python's, in place of the usual ones; () for the usual ones
    """

    stack: str
    out: Path
    python: str | None = None
    find_links: str = ""
    debian: bool = False
    debian_packages: tuple[str, ...] = ()
    timeout_s: float = 3600.0


def build(request: BuildRequest, progress: Callable[[str, int, int], None] = lambda *_: None) -> Bundle:
    """Bring every package of the stack's lock and write the bundle.

    progress: called with a package's name, its place and how many there are
    """
    stack = load_stack(request.stack)
    python = request.python or stack.python
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise InputError(f"found {python!r}, wanted a version like 3.11", where="--python", fix="--python 3.11")
    if not request.out.parent.is_dir():
        raise InputError("no such directory", where=str(request.out.parent), fix="name another --out FILE")
    lock = stack_lock(request.stack).read_text("utf-8")
    count = len(list(pins(lock)))
    come = 0

    def tell(package: str) -> None:
        nonlocal come
        come += 1
        progress(package, come, count)

    with tempfile.TemporaryDirectory(prefix=".l40s-wheels-", dir=request.out.absolute().parent) as folder:
        wheels = Path(folder)
        wheelhouse.download(
            lock, wheels, python=python, find_links=request.find_links, deadline_s=request.timeout_s, progress=tell
        )
        debs = _debs(request, stack, python, wheels) if request.debian else None
        return write_bundle(
            request.out,
            stack,
            python=python,
            lock=lock,
            wheels=wheels,
            debs=debs,
            debian=debian.release() if debs else "",
        )


def _debs(request: BuildRequest, stack: Stack, python: str, beside: Path) -> Path:
    folder = beside / "debs"
    folder.mkdir()
    wanted = {
        *(request.debian_packages or debian.base_packages()),
        *stack.system_packages,
        *debian.python_packages(python),
    }
    debian.download(sorted(wanted), folder, deadline_s=request.timeout_s)
    return folder
