"""Wheels that no package index has any more, which an operator brings in a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from orchestrator.host_setup.locks import REQUIRE, plain, sha256
from orchestrator.model.errors import InputError
from orchestrator.model.profile import Stack


def wheels(stack: Stack, folder: str) -> dict[str, Path]:
    """The wheel of each package that this stack needs and no index has, by `name==version`.

    folder: what --find-links names. Raises InputError with the first that is missing and where it can be had.
    """
    return {pin: _wheel(stack, pin, words, folder) for pin, words in stack.bring}


def refuse_without(stack: Stack) -> None:
    """Raises InputError for a stack that can't be installed from an index alone."""
    for pin, words in stack.bring:
        raise InputError(
            f"{pin} is on no package index, so this stack can't be installed from one",
            where=f"stack {stack.name}",
            fix=f"{words}; then run `l40s-deploy stack build {stack.name} --find-links DIR --out FILE` and "
            "`l40s-deploy prepare --bundle FILE`",
        )


def with_brought(lock: str, found: dict[str, Path]) -> str:
    """The lock with these wheels, by their SHA-256 where it asks for digests."""
    if REQUIRE in lock.splitlines():
        lines = [f"{pin} --hash=sha256:{sha256(file.open('rb'))}" for pin, file in found.items()]
    else:
        lines = list(found)
    return "\n".join([lock.rstrip("\n"), *lines, ""])


def _wheel(stack: Stack, pin: str, words: str, folder: str) -> Path:
    name, _, version = pin.partition("==")
    begins = f"{plain(name).replace('-', '_')}-{version}"
    place = Path(folder).expanduser() if folder and "://" not in folder else None
    found = [file for file in _files(place) if re.match(rf"{re.escape(begins)}[-+]", file.name.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"several wheels are {pin}: {', '.join(file.name for file in found)}",
            where=str(place),
            fix="leave one of them there",
        )
    raise InputError(
        f"{pin} is on no package index" + (f", and no {begins}-*.whl is in {place}" if place else ""),
        where=f"stack {stack.name}",
        fix=f"{words}; then add --find-links DIR with the folder that holds it",
    )


def _files(place: Path | None) -> Sequence[Path]:
    return sorted(place.glob("*.whl")) if place and place.is_dir() else ()
