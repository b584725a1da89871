"""Which published configs make a pack for one engine version and GPU. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.engines.tuned_files import Lookup
from orchestrator.engines.tuned_validity import read_name
from orchestrator.engines.tuned_wanted import triton_folder
from orchestrator.model.published import Published
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
