"""Copies of one directory compared by their files' digests: what differs, who is odd, what puts it right."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.per_node import majority


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One file that is not the same everywhere.

    digests: each node's SHA-256, '' where the file is missing
    odd:     nodes that differ from most; () where there is no majority to hold them to
    """

    path: str
    digests: Mapping[str, str]
    odd: tuple[str, ...]

    @property
    def is_extra(self) -> bool:
        """A file that most do not have."""
        return bool(self.odd) and not any(digest for node, digest in self.digests.items() if node not in self.odd)

    def words(self) -> str:
        """'node2 differs', 'missing on node3', or who has what."""
        if not self.odd:
            sides = "; ".join(f"{node} {digest[:12] or 'missing'}" for node, digest in self.digests.items())
            return f"not the same: {sides}"
        missing = [node for node in self.odd if not self.digests[node]]
        other = [node for node in self.odd if self.digests[node]]
        parts = [f"missing on {', '.join(missing)}"] if missing else []
        return ", ".join(parts + ([f"differs on {', '.join(other)}"] if other else []))


def differences(copies: Mapping[str, Mapping[str, str]]) -> tuple[FileDifference, ...]:
    """The files that differ, by path. copies: SHA-256 by path, for every node."""
    paths = sorted({path for copy in copies.values() for path in copy})
    found = []
    for path in paths:
        digests = {node: copy.get(path, "") for node, copy in copies.items()}
        if len(set(digests.values())) > 1:
            found.append(FileDifference(path, digests, _odd(digests)))
    return tuple(found)


def _odd(digests: Mapping[str, str]) -> tuple[str, ...]:
    """With two copies nobody knows which is right, but one that is not there is not."""
    found = majority(digests)
    return tuple(found[1]) if found else tuple(node for node, digest in digests.items() if not digest)


def repair_command(source: str, node: str, name: str = "") -> str:
    """source: a directory of this machine, or NODE:/path; name: of the copy, where it is not the source's own."""
    other = name and _last(source) != name
    words = [
        "l40s-deploy",
        "checkpoint",
        "push",
        source,
        "--node",
        node,
        *(["--as", name] if other else []),
        "--repair",
    ]
    return shlex.join(words)


def repairs(
    differences: Sequence[FileDifference], directories: Mapping[str, str], read: Sequence[str]
) -> Iterator[str]:
    """What to do about copies that differ, one line each. read: nodes whose copy could be read."""
    odd = dict.fromkeys(node for one in differences for node in one.odd if not one.is_extra)
    good = next((node for node in read if not any(node in one.odd for one in differences)), None)
    if good is not None:
        for node in odd:
            yield repair_command(f"{good}:{directories[good]}", node, _last(directories[node]))
    for one in differences:
        if one.is_extra:
            yield f"remove {one.path} on {', '.join(one.odd)}: the other nodes do not have it"
    if any(not one.odd for one in differences) or (odd and good is None):
        first, *others = read
        command = repair_command(f"{first}:{directories[first]}", ",".join(others))
        yield f"find the right copy by its publisher's checksums, then push from that one: {command}"


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].rpartition(":")[2]
