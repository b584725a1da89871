"""Copies of one directory compared by the digests of their files: what differs, and who is odd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.model.majority import majority


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
