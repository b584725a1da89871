#!/usr/bin/env python3
"""Gather the formats of NCCL's warnings, by version, for tests/unit/engines/lines/nccl.txt.

    scripts/nccl_lines.py REPOSITORY [libnccl.so.2 VERSION]...

REPOSITORY is a clone of NVIDIA/nccl with its tags. A version whose source is not published yet is read from its
library: of its texts, those that the sources before have as a warning, and new ones of the same files by how they
begin. Only formats are written, in the order of the files. A cause that the table names stays; a new format gets '?',
which the test refuses until somebody has decided: an id of engines/causes.py, or '-' for a line that explains nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "tests" / "unit" / "engines" / "lines" / "nccl.txt"
VERSIONS = ("2.18.3", "2.21.5", "2.23.4", "2.25.1", "2.27.7", "2.28.9", "2.29.7", "2.30.7")
"""The newest patch of those that stacks, kits and public logs name."""
FILES = re.compile(
    r"src/(?:bootstrap|init|net|proxy|transport|allocator|plugin/net|misc/(?:ibvwrap|socket|shmutils|ipcsocket)"
    r"|transport/[a-z_0-9]+|transport/net_ib/[a-z_0-9]+|ras/[a-z_]+|os/linux\w*"
    r"|include/(?:socket|shm|shmutils|checks|alloc|ibvwrap|cudawrap))\.(?:cc|h)"
)
WARN = re.compile(r"\bWARN\s*\(")
OTHERS = re.compile(r"\b(?:INFO|TRACE|ATTN)\s*\([^\"]{0,80}")
TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([A-Za-z_]\w*)|\\\n)')
TEXTS = re.compile(rb"[\x20-\x7e\n]{12,600}")
OF_LIBRARY = re.compile(
    r"(?:NET/(?:IB|Socket)|Net :|HINT:|Mismatched|Call to|socket\w+:|nccl\w*Socket\w*:|Peer %s|Handshake"
    r"|Failed to CUDA) "
)


def main(repository: str, *libraries: str) -> None:
    """Write the table anew."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)  # file by version, by format
    others: set[str] = set()
    for version in VERSIONS:
        for file, text in _sources(repository, version):
            others |= set(_formats(text, OTHERS))
            for words in _formats(text, WARN):
                found[words].setdefault(version, file.removeprefix("src/"))
    for path, version in zip(libraries[::2], libraries[1::2], strict=True):
        texts = {raw.decode().replace("\n", "\\n") for raw in TEXTS.findall(Path(path).read_bytes())}
        for words in sorted(texts):
            if words in found or (OF_LIBRARY.match(words) and words not in others):
                found[words].setdefault(version, next(reversed(found[words].values()), "libnccl.so.2"))
    decided = (
        dict(reversed(line.split("\t", 3)[::3]) for line in TABLE.read_text().splitlines()) if TABLE.exists() else {}
    )
    rows = [
        "\t".join((decided.get(words, "?"), ",".join(files), list(files.values())[-1], words))
        for words, files in sorted(found.items(), key=lambda one: (list(one[1].values())[-1], one[0]))
    ]
    TABLE.write_text("\n".join(rows) + "\n")


def _sources(repository: str, version: str) -> Iterator[tuple[str, str]]:
    tag = f"v{version}-1"
    for file in _git(repository, "ls-tree", "-r", "--name-only", tag, "--", "src").splitlines():
        if FILES.fullmatch(file):
            yield file, _git(repository, "show", f"{tag}:{file}")


def _formats(text: str, calls: re.Pattern[str]) -> Iterator[str]:
    """The formats of all such calls; C joins texts that follow each other, and a macro's name among them is one."""
    for call in calls.finditer(text):
        parts, place = [], call.end()
        while token := TOKEN.match(text, place):
            name = token[2] or ""
            parts.append("s" if name.startswith("PRI") else "%s" if name else token[1] or "")
            place = token.end()
        words = re.sub(r"\\\n\s*", " ", "".join(parts)).removesuffix("\\n").strip()
        if words not in ("", "%s") and "\t" not in words:
            yield words


def _git(repository: str, *words: str) -> str:
    return subprocess.run(["git", "-C", repository, *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
