"""A pack: tuned configs of one GPU and engine version that travel together, each with its digest. Pure; no files here.

Parts by their names in a pack: `manifest.json`, `moe/triton_3_8_0/E=...json` (`moe/E=...json` for a version that does
not keep Triton versions apart), `linear/N=...json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.engines.engine import Lookup, moe_root
from orchestrator.engines.tuned_validity import Name, TunedFileFinding, digest, flaws, read_name
from orchestrator.engines.tuned_wanted import triton_folder, triton_version
from orchestrator.protocol.looks import Holdings
from orchestrator.protocol.message import parsed
from orchestrator.protocol.severity import Severity

FORMAT = 1
KIND = "l40s-deploy tuned configs"
MANIFEST = "manifest.json"
MEASURED, INTERPRETED = "measured", "interpreted"
"""How a tuning run came to its times: on GPUs, or without one in Triton's interpreter."""
PUBLISHED, DERIVED = "published", "derived"
"""Somebody else's: as they published it, or the same tiles under the name that another engine version looks for."""
LARGEST_PART = 1 << 20
MOST_PARTS = 4096
_PART = re.compile(r"(?P<kernel>moe|linear)/(?:(?P<triton>triton_\d+(?:_\d+)*)/)?(?P<name>[^/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """texts: by part name. device: the GPU as file names have it; triton: what its origin ran, '' if not known

    made: how: '' for what a node had, measured, interpreted (without a GPU: good for tests alone), published, derived
    origin: where its numbers are from, with licence, '' for this cluster
    """

    dialect: str
    engine_version: str
    device: str
    triton: str
    texts: Mapping[str, str]
    made: str = ""
    origin: str = ""

    @property
    def about(self) -> dict[str, str]:
        """What its files are for, as documents have it."""
        names = ("dialect", "engine_version", "device", "triton")
        return {name: getattr(self, name) for name in names}

    def places(self, lookup: Lookup, moe_directory: str = "") -> dict[str, str]:
        """{file below the engine's root, or absolute: its text}."""
        roots = {"moe": moe_root(lookup, moe_directory), "linear": lookup.linear}
        parts = ((part.partition("/"), text) for part, text in self.texts.items())
        return {f"{roots[kernel]}/{rest}": text for (kernel, _, rest), text in parts}

    def tritons(self) -> tuple[str, ...]:
        """Folders of the Triton versions that its MoE configs were tuned with."""
        versions = {match["triton"] for part in self.texts if (match := _PART.fullmatch(part)) and match["triton"]}
        return tuple(sorted(versions))


def manifest(pack: Pack) -> str:
    """The text of a pack's manifest.json."""
    document = {
        "format": FORMAT,
        "kind": KIND,
        **pack.about,
        **{name: text for name, text in (("made", pack.made), ("origin", pack.origin)) if text},
        "files": {part: digest(text) for part, text in sorted(pack.texts.items())},
    }
    return json.dumps(document, indent=1) + "\n"


def read_pack(parts: Mapping[str, str], by_triton: Mapping[str, bool]) -> Pack:
    """A pack out of its parts, every one of them proved and judged.

    by_triton: whether a dialect's version keeps MoE configs apart by Triton version
    Raises ValueError with the reason why it can't be used.
    """
    document = _manifest(parts)
    files, texts = document["files"], {part: text for part, text in parts.items() if part != MANIFEST}
    if document["dialect"] not in by_triton:
        raise ValueError(f"it is for {document['dialect']!r}; known are {', '.join(by_triton)}")
    if not texts:
        raise ValueError("it contains no config")
    pack = Pack(**{key: str(document.get(key) or "") for key in (*_WANTED, "triton", "made", "origin")}, texts=texts)
    for part in sorted({*files, *texts}):
        _judge(pack, part, files.get(part), apart=by_triton[pack.dialect])
    return pack


def pack_of(
    held: Holdings, lookup: Lookup, *, dialect: str, device: str, moe_directory: str = ""
) -> tuple[Pack, tuple[tuple[str, TunedFileFinding], ...]]:
    """Everything usable that a node has for its GPU, and what was left out with its reason."""
    texts: dict[str, str] = {}
    left: list[tuple[str, TunedFileFinding]] = []
    for folder, files in held.folders.items():
        for name, text in files.items():
            part = part_name(folder, name, lookup, moe_directory)
            if not _PART.fullmatch(part) or not part.isprintable():
                continue
            if wrong := unusable_for(name, text):
                left.append((part, wrong))
            else:
                texts[part] = text
    pack = Pack(
        dialect=dialect,
        engine_version=held.versions.get("sglang", ""),
        device=device,
        triton=held.versions.get("triton", ""),
        texts=texts,
    )
    return pack, tuple(left)


def unusable_for(name: str, text: str) -> TunedFileFinding | None:
    """The first flaw of a config with which an engine would fail or answer wrongly."""
    return next((flaw for flaw in flaws(name, text) if flaw.severity is Severity.STOP), None)


def part_name(folder: str, name: str, lookup: Lookup, moe_directory: str = "") -> str:
    """What a node's file is called in a pack; '' for a file of no such place."""
    root = moe_root(lookup, moe_directory)
    if folder == lookup.linear:
        return f"linear/{name}"
    if folder == root and not lookup.by_triton:
        return f"moe/{name}"
    parent, _, version = folder.rpartition("/")
    return f"moe/{version}/{name}" if lookup.by_triton and parent == root and triton_version(version) else ""


_WANTED = ("dialect", "engine_version", "device")


def _manifest(parts: Mapping[str, str]) -> Mapping[str, Any]:
    if MANIFEST not in parts:
        raise ValueError(f"it has no {MANIFEST}")
    document = parsed(parts[MANIFEST])
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ValueError(f"its {MANIFEST} is not one of tuned configs")
    if document.get("format") != FORMAT:
        raise ValueError(f"its format is {document.get('format')!r}, but this version reads {FORMAT}")
    if not isinstance(document.get("files"), dict) or not all(isinstance(document.get(key), str) for key in _WANTED):
        raise ValueError(f"its {MANIFEST} has no files, {', '.join(_WANTED)}")
    return document


def _read_part(part: str) -> tuple[re.Match[str], Name]:
    match = _PART.fullmatch(part)
    kernel = read_name(match["name"]) if match else None
    if match is None or kernel is None or kernel.kernel != match["kernel"]:
        raise ValueError(f"{part} has a name that no engine uses")
    return match, kernel


def _judge(pack: Pack, part: str, wanted: object, *, apart: bool) -> None:
    """wanted: the digest that the manifest has, None where it lists no such file."""
    if part not in pack.texts:
        raise ValueError(f"{part} is missing")
    if wanted is None:
        raise ValueError(f"{part} is not listed in the manifest")
    if digest(pack.texts[part]) != wanted:
        raise ValueError(f"{part} has been changed: its digest differs from the manifest")
    match, kernel = _read_part(part)
    if bool(match["triton"]) != (apart and kernel.kernel == "moe"):
        raise ValueError(
            f"{part} is in the wrong folder for {pack.dialect}: it must be {'below' if apart else 'without'}"
            " triton_X_Y_Z"
        )
    if kernel.device != pack.device:
        raise ValueError(f"{part} is for {kernel.device}, but the pack is for {pack.device}")
    if wrong := unusable_for(match["name"], pack.texts[part]):
        raise ValueError(f"{part}: {wrong.text}")


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


LAYERS = "sglang/srt/layers"
"""What a published path is below, in an installed SGLang 0.4.4."""


def parts_of(published: Published, lookup: Lookup, device: str) -> Mapping[str, tuple[str, str]]:
    """{part of a pack: (path below the publisher's folder, SHA-256)} of what there is for a GPU; empty for nothing.

    device: the GPU as file names have it. A version that keeps Triton versions apart gets the derived ones.
    """
    if lookup.by_triton:
        folder = triton_folder(published.triton)
        return {
            f"moe/{folder}/{name}": (derived.source, derived.sha256)
            for name, derived in published.derived.items()
            if _is_for(name, device)
        }
    parts = {}
    for path, sha256 in published.files.items():
        place, _, name = path.rpartition("/")
        part = part_name(f"{LAYERS}/{place}", name, lookup)
        if part and _is_for(name, device):
            parts[part] = (path, sha256)
    return parts


def devices(published: Published) -> tuple[str, ...]:
    """Every GPU that there is something for."""
    names = [path.rpartition("/")[2] for path in (*published.files, *published.derived)]
    return tuple(sorted({kernel.device for name in names if (kernel := read_name(name))}))


def _is_for(name: str, device: str) -> bool:
    kernel = read_name(name)
    return kernel is not None and kernel.device == device
