"""Text files that a user names: NODE=FILE, -, gzip or not, each read only so far as it can help."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections import deque
from pathlib import Path

from orchestrator.protocol.errors import InputError

HEAD, TAIL = 1 << 20, 15 << 20
"""Bytes of a log that are read where it is longer: how it began, which names versions and transport, and its end."""
MOST = 4 << 30
"""Of a log, unpacked."""
_CHUNK = 1 << 20


def named_file(name: str) -> tuple[str, str]:
    """(node, file) of NODE=FILE, FILE or -."""
    node, equals, file = name.partition("=")
    if equals and node and not os.access(name, os.F_OK):  # False for a pasted line, which is too long for a name
        return node, file
    return "stdin" if name == "-" else Path(name).name.removesuffix(".gz").removesuffix(".log"), name


def lines_of_file(file: str, fix: str) -> list[str]:
    """Of a text, gzip or not, or of standard input. Raises InputError with this fix where it can't be read as such."""
    try:
        with io.BufferedReader(io.FileIO(sys.stdin.fileno() if file == "-" else file, closefd=file != "-")) as stream:
            data = _read(gzip.GzipFile(fileobj=stream) if stream.peek(2)[:2] == b"\x1f\x8b" else stream)
    except (OSError, EOFError, zlib.error) as failure:
        words = getattr(failure, "strerror", None) or failure
        raise InputError(f"can't be read: {words}", where=file, fix=fix) from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell redirects
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    if b"\0" in data[:_CHUNK]:
        raise InputError("is no text: it contains NUL bytes", where=file, fix=fix)
    return data.decode("utf-8-sig", "replace").replace("\r", "\n").split("\n")


def _read(stream: io.BufferedIOBase) -> bytes:
    """All of it, or its beginning and its end."""
    head, tail, size = stream.read(HEAD), deque[bytes](), HEAD
    while chunk := stream.read(_CHUNK):
        tail.append(chunk)
        size += len(chunk)
        if size > MOST:
            raise OSError(f"more than {MOST >> 30} GiB unpacked")
        if len(tail) > TAIL // _CHUNK:
            tail.popleft()
    return head + (b"\n" if size > HEAD + TAIL else b"") + b"".join(tail)
