"""Lock files: `name==version`, one a line, each with the SHA-256 of every wheel that pip may take for it.

The first option of ours is pip's own `--require-hashes`: every installation from the file gets those
wheels or a refusal (pip, "Secure installs"). A lock without it is an operator's own, and installs without this check.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import IO

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
