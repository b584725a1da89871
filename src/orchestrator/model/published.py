"""Published tuned kernel configs: where they are, and the digest of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A published file under the name that another engine version looks for. source: its path below `folder`"""

    source: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One publisher's configs at one commit.

    address: of one file, with {commit} and {file} in it; folder: of the paths in `files`, in a checkout
    triton:  the version that they were tuned with; note: what is known of them, in one honest sentence
    files:   path below `folder` -> SHA-256, as SGLang 0.4.4 looks for them
    derived: MoE file name of SGLang 0.5 -> whose tiles it has
    """

    name: str
    source: str
    commit: str
    licence: str
    address: str
    folder: str
    triton: str
    note: str
    files: Mapping[str, str]
    derived: Mapping[str, Derived]

    @property
    def origin(self) -> str:
        """As a pack's manifest names it."""
        return f"{self.source}, commit {self.commit}, {self.licence}"
