"""Verb `same-root`: whether other nodes see the same directory. A file with a random name shows it.

`write` makes it; `look` says which of all nodes' files are seen, and whether the child is on another file system;
`remove` takes our own away. A name that nobody has ever asked for is in no NFS client's cache, so a look is the truth.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from orchestrator.node.requests import request_of
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import SameRootAnswer, SameRootRequest

_NAME = re.compile(r"\.l40s-nonce-[0-9a-f]{16,64}")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """A directory that can't be written is no error."""
    asked = request_of(SameRootRequest, request)
    directory, answer = Path(asked.directory), SameRootAnswer()
    if asked.op == "look":
        seen = tuple(name for name in map(_plain, asked.names) if os.path.exists(directory / name))
        return SameRootAnswer(seen=seen, apart=_apart(directory, asked.child)).as_json()
    if asked.op not in ("write", "remove"):
        raise DeployError(f"same-root has no op {asked.op!r}", where="request", fix="", kind="bad-request")
    path = directory / _plain(asked.name)
    with contextlib.suppress(OSError):
        if asked.op == "write":
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        else:
            path.unlink()
        answer = SameRootAnswer(done=True)
    return answer.as_json()


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise DeployError(f"{name!r} is not a valid name", where="request", fix="", kind="bad-request")
    return name


def _apart(directory: Path, child: str) -> bool:
    """Whether the child is another file system's: a mount, or a link that leads to one or to nothing here."""
    path = directory / child
    try:
        return path.stat().st_dev != directory.stat().st_dev
    except OSError:
        return os.path.islink(path)
