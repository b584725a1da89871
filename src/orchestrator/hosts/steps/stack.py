"""`stack build`: a stack's packages as one file, for nodes that reach no package index."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from orchestrator.engines.router import SMG
from orchestrator.hosts.steps import bundle, parts
from orchestrator.hosts.steps.bundle import StackBundle, write_bundle
from orchestrator.loading.profiles import load_stack, stack_lock, stack_recipe
from orchestrator.loading.resources import data_dir
from orchestrator.model.packages import pins
from orchestrator.model.profile import Stack
from orchestrator.protocol.errors import InputError
from orchestrator.records.documents import cant_be_written

ROUTER = "router"
"""What `stack build` is given for the router's packages."""

ROUTER_STACK = Stack(
    name=SMG.name,
    source="playbooks/roles/router_env",
    dialect="",
    engine_version=SMG.version,
    python="3.11",
)
"""As a bundle names them; Debian 12's Python is the oldest that they support."""


def router_lock() -> Path:
    """The pins of the router's packages."""
    return data_dir("playbooks") / "roles" / "router_env" / "files" / f"{ROUTER_STACK.name}.lock"


def build(
    name: str,
    out: Path,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    *,
    python: str | None = None,
    find_links: str = "",
    words_from: str | None = None,
    debian_packages: tuple[str, ...] | None = None,
    timeout_s: float = 3600.0,
) -> StackBundle:
    """Bring every package of the stack's lock and write the bundle.

    name:     a stack's name or file, or ROUTER for the router's packages
    progress: called with a package's name, its place and how many there are
    python:   None is the stack's own; find_links: '' leaves it to pip's configuration
    words_from: what tokenizers would download comes along, from a folder, or '' for where they download it; None: not
    debian_packages: Debian packages come along, of this machine's release: these, beside the stack's and Python's, or
              () for those that `prepare` usually installs; None: no packages
    """
    stack = ROUTER_STACK if name == ROUTER else load_stack(name)
    python = _python_version(python or stack.python)
    if not out.parent.is_dir():
        raise InputError("no such directory", where=str(out.parent), fix="choose another path with --out FILE")
    lock = _lock(stack, name, find_links) if stack.install == "venv" else ""
    with _beside(out) as place:
        folders = {"wheels": place}
        part = partial(_folder_in, place, folders)
        if stack.install == "venv":
            _bring_wheels(lock, place, progress, python=python, find_links=find_links, deadline_s=timeout_s)
            if words_from is not None:
                parts.bring_vocabularies(part("vocabularies"), source=words_from, deadline_s=timeout_s)
        else:
            parts.save_image(stack, part("image") / "image.tar", deadline_s=timeout_s)
        if debian_packages is not None:
            wanted = _debian_packages(stack, debian_packages, python)
            parts.download_debs(wanted, part("debs"), deadline_s=timeout_s)
        debian = parts.release() if "debs" in folders else ""
        return write_bundle(out, stack, python=python, lock=lock, folders=folders, debian=debian)


def _folder_in(place: Path, folders: dict[str, Path], kind: str) -> Path:
    """A new folder for parts of this kind, kept in `folders`."""
    folders[kind] = place / kind
    folders[kind].mkdir()
    return folders[kind]


def _bring_wheels(
    lock: str,
    place: Path,
    progress: Callable[[str, int, int], None],
    *,
    python: str,
    find_links: str,
    deadline_s: float,
) -> None:
    """Every package of the lock, each told as it comes."""
    count, come = len(list(pins(lock))), itertools.count(1)

    def at(package: str) -> None:
        progress(package, next(come), count)

    parts.download_wheels(lock, place, python=python, find_links=find_links, deadline_s=deadline_s, progress=at)


def _python_version(python: str) -> str:
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise InputError(f"found {python!r}, wanted a version like 3.11", where="--python", fix="--python 3.11")
    return python


def _debian_packages(stack: Stack, chosen: tuple[str, ...], python: str) -> list[str]:
    """chosen: () for those that `prepare` usually installs"""
    base = chosen or parts.base_packages()
    return sorted({*base, *stack.system_packages, *parts.python_packages(python)})


def _lock(stack: Stack, name: str, find_links: str) -> str:
    """The pins of a stack, those wheels among them that are at hand."""
    lock = (router_lock() if name == ROUTER else stack_lock(name)).read_text("utf-8")
    brought = bundle.wheels(stack, find_links)
    return bundle.with_brought(lock, brought) if brought else lock


@contextlib.contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder for the parts, on the bundle's own file system, for as long as it is built."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".l40s-build-", dir=out.absolute().parent)
    except OSError as error:
        raise cant_be_written(out.parent, error, "choose another path with --out FILE") from None
    with folder as place:
        yield Path(place)


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
