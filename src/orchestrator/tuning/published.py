"""Published tuned kernel configs: the digest of each, and which make a pack for an engine version and a GPU. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.engines.engine import Lookup
from orchestrator.engines.tuned_validity import read_name
from orchestrator.engines.tuned_wanted import triton_folder
from orchestrator.tuning.pack import part_name

LAYERS = "sglang/srt/layers"
"""What a published path is below, in an installed SGLang 0.4.4."""


def parts_of(published: Published, lookup: Lookup, device: str) -> Mapping[str, tuple[str, str]]:
    """{part of a pack: (path below the publisher's folder, SHA-256)} of what there is for a GPU; empty for nothing.

    device: the GPU as file names have it. A version that keeps Triton versions apart gets the derived ones.
    """
    if lookup.by_triton:
        folder = triton_folder(published.triton)
        return {
            f"moe/{folder}/{name}": (one.source, one.sha256)
            for name, one in published.derived.items()
            if _is_for(name, device)
        }
    found = {}
    for path, digest in published.files.items():
        place, _, name = path.rpartition("/")
        part = part_name(f"{LAYERS}/{place}", name, lookup)
        if part and _is_for(name, device):
            found[part] = (path, digest)
    return found


def devices(published: Published) -> tuple[str, ...]:
    """Every GPU that there is something for."""
    names = [path.rpartition("/")[2] for path in (*published.files, *published.derived)]
    return tuple(sorted({said.device for name in names if (said := read_name(name))}))


def _is_for(name: str, device: str) -> bool:
    said = read_name(name)
    return said is not None and said.device == device


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
    note: str = ""
    files: Mapping[str, str]
    derived: Mapping[str, Derived]

    @property
    def origin(self) -> str:
        """As a pack's manifest names it."""
        return f"{self.source}, commit {self.commit}, {self.licence}"
