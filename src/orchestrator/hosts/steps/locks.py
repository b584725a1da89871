"""Lock files: `name==version`, one a line, each with the SHA-256 of every wheel that pip may take for it.

The first option of ours is pip's own `--require-hashes`: every installation from the file gets those
wheels or a refusal (pip, "Secure installs"). A lock without it is an operator's own, and installs without this check.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from orchestrator.model.errors import InputError
from orchestrator.model.profile import Stack

REQUIRE = "--require-hashes"
PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?==(?P<version>[^\s;#\\]+)(?P<marker>\s*;[^#\\]*)?")
_BLOCK = 1 << 20
_HASH = re.compile(r"\s*\\?\s*--hash=sha256:[0-9a-f]{64}")


def pins(lock: str) -> Iterable[re.Match[str]]:
    """The lines `name==version` of a lock."""
    return (pin for line in lock.splitlines() if (pin := PIN.match(line.strip())))


def plain(name: str) -> str:
    """As PyPA's name normalisation has it (packaging.python.org, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256(content: IO[bytes]) -> str:
    """Of all that is left in it, in hex; closes it."""
    digest = hashlib.sha256()
    with content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def bare(lock: str) -> str:
    """The lock without hashes: which packages it wants, and nothing of how that is proved."""
    return _HASH.sub("", lock).replace(f"{REQUIRE}\n", "")


def lacking(lock: str) -> tuple[str, ...]:
    """Pins without a hash, and pip's option where the lock lacks it."""
    words = _HASH.sub(" HASH", lock).splitlines()
    open_pins = [pin[0].strip() for line in words if (pin := PIN.match(line.strip())) and "HASH" not in line]
    return (*(() if REQUIRE in words else (REQUIRE,)), *open_pins)


def hashed(lock: str, digests: Mapping[str, Iterable[str]]) -> str:
    """The lock with these SHA-256 in place of its own, and pip's option before the first package.

    digests: by `plain` name; a package that it lacks stays without one
    """
    lines, told = [], False
    for line in bare(lock).splitlines():
        pin = PIN.match(line.strip())
        if pin and not told:
            lines.append(REQUIRE)
            told = True
        found = sorted(set(digests.get(plain(pin["name"]), ()))) if pin else []
        lines.append(" \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in found)]))
    return "\n".join(lines) + "\n"


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
