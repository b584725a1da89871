"""`stack build`: a stack's packages as one file, for nodes that reach no package index."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.engines.router import VERSION
from orchestrator.hosts.steps import debian, images, locks, vocabularies, wheelhouse
from orchestrator.hosts.steps.bundle import StackBundle, write_bundle
from orchestrator.hosts.steps.locks import pins
from orchestrator.loading.resources import data_dir
from orchestrator.loading.stacks import load_stack, stack_lock, stack_recipe
from orchestrator.model.errors import InputError
from orchestrator.model.profile import Stack
from orchestrator.records.documents import cant_be_written

ROUTER = "router"
"""What `stack build` is given for the router's packages."""

ROUTER_STACK = Stack(
    name=f"sglang-router-{VERSION}",
    source="playbooks/roles/router_env",
    dialect="",
    engine_version=VERSION,
    python="3.11",
)
"""As a bundle names them; Debian 12's Python is the oldest that they support."""


def router_lock() -> Path:
    """The pins of the router's packages."""
    return data_dir("playbooks") / "roles" / "router_env" / "files" / f"{ROUTER_STACK.name}.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What to build. stack: a stack's name or file, or ROUTER for the router's packages.

    python: None is the stack's own; find_links: '' leaves it to pip's configuration
    vocabularies: what tokenizers would download comes along; from a folder, or '' for where they download it
    debian: the Debian packages that `prepare` installs come along, of this machine's release
    debian_packages: these, beside the stack's and Python's, in place of the usual ones; () for the usual ones
    """

    stack: str
    out: Path
    python: str | None = None
    find_links: str = ""
    vocabularies: bool = False
    vocabularies_from: str = ""
    debian: bool = False
    debian_packages: tuple[str, ...] = ()
    timeout_s: float = 3600.0


def build(request: BuildRequest, progress: Callable[[str, int, int], None] = lambda *_: None) -> StackBundle:
    """Bring every package of the stack's lock and write the bundle.

    progress: called with a package's name, its place and how many there are
    """
    stack = ROUTER_STACK if request.stack == ROUTER else load_stack(request.stack)
    python = request.python or stack.python
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise InputError(f"found {python!r}, wanted a version like 3.11", where="--python", fix="--python 3.11")
    if not request.out.parent.is_dir():
        raise InputError("no such directory", where=str(request.out.parent), fix="choose another path with --out FILE")
    if stack.install != "venv":
        return _build_with_image(request, stack, python)
    lock = (router_lock() if request.stack == ROUTER else stack_lock(request.stack)).read_text("utf-8")
    if found := locks.wheels(stack, request.find_links):
        lock = locks.with_brought(lock, found)
    count = len(list(pins(lock)))
    come = 0

    def tell(package: str) -> None:
        nonlocal come
        come += 1
        progress(package, come, count)

    with _beside(request.out) as wheels:
        wheelhouse.download(
            lock, wheels, python=python, find_links=request.find_links, deadline_s=request.timeout_s, progress=tell
        )
        debs = _debs(request, stack, python, wheels) if request.debian else None
        words = _vocabularies(request, wheels) if request.vocabularies else None
        return write_bundle(
            request.out,
            stack,
            python=python,
            lock=lock,
            wheels=wheels,
            debs=debs,
            vocabularies=words,
            debian=debian.release() if debs else "",
        )


@contextlib.contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder for the parts, on the bundle's own file system, for as long as it is built."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".l40s-build-", dir=out.absolute().parent)
    except OSError as error:
        raise cant_be_written(out.parent, error, "choose another path with --out FILE") from None
    with folder as place:
        yield Path(place)


def _build_with_image(request: BuildRequest, stack: Stack, python: str) -> StackBundle:
    with _beside(request.out) as place:
        (place / "image").mkdir()
        images.save(stack, place / "image" / "image.tar", deadline_s=request.timeout_s)
        debs = _debs(request, stack, python, place) if request.debian else None
        return write_bundle(
            request.out,
            stack,
            python=python,
            lock="",
            wheels=place,
            debs=debs,
            debian=debian.release() if debs else "",
            image=place / "image",
        )


def write_recipe(name: str, folder: Path) -> tuple[Path, ...]:
    """Put what makes an image of a stack into a folder, with the stack's own file as stack.yml; gives the files."""
    source, stack = stack_recipe(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            "already exists and is not empty", where=str(folder), fix="choose another directory with --out DIR"
        )
    try:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        shutil.copyfile(stack, folder / "stack.yml")
    except OSError as error:
        raise cant_be_written(folder, error, "--out DIR") from None
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _vocabularies(request: BuildRequest, beside: Path) -> Path:
    folder = beside / "vocabularies"
    folder.mkdir()
    vocabularies.bring(folder, source=request.vocabularies_from, deadline_s=request.timeout_s)
    return folder


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
