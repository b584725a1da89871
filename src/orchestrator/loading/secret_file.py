"""A secret out of a file that only its owner can read. Errors never show what is in the file."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from orchestrator.model.errors import InputError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/][A-Za-z0-9._~+/-]{7,511}=*")
"""What an Authorization header may carry (RFC 6750, b64token), long enough to be found in a log without
mistaking anything else for it, and never like a flag."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_api_key(path: Path, *, where: str) -> str:
    """The key in a file, blanks around it left out. Raises InputError."""
    text = read_private_text(path, what="the key", where=where)
    if _TOKEN.fullmatch(text) is None:
        raise InputError(
            f"{path} does not hold a key: wanted 8 or more of A-Z a-z 0-9 . _ ~ + / - on one line, no - first",
            where=where,
            fix=f"openssl rand -hex 24 > {path}",
        )
    return text


def read_private_line(path: Path, *, what: str, where: str) -> str:
    """The one line in a file, blanks around it left out. Raises InputError."""
    text = read_private_text(path, what=what, where=where)
    if not text or not text.isprintable():
        raise InputError(f"{path} does not hold one line", where=where, fix=f"write {what} into it, nothing else")
    return text


def read_private_text(path: Path, *, what: str, where: str) -> str:
    """All of a file, blanks around it left out. Raises InputError."""
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8").strip()
    except OSError as failure:
        raise InputError(
            f"{path} can't be read: {failure.strerror or failure}", where=where, fix=f"name a file that contains {what}"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file", where=where, fix=f"write {what} into it, nothing else") from None
    if mode & _OTHERS:
        raise InputError(
            f"{path} may be read by others (mode {stat.S_IMODE(mode):04o})", where=where, fix=f"chmod 600 {path}"
        )
    return text
