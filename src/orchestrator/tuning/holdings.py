"""What a node has of the configs that its engine looks for: which file it will take, and whether that can be used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from orchestrator.engines.tuned_files import Lookup
from orchestrator.model.finding import Severity
from orchestrator.tuning.validity import Flaw, flaws
from orchestrator.tuning.wanted import Wanted, resolve


class State(str, Enum):
    """tuned: the very file; fallback: another Triton's, or the up projection's; default: none, the engine's built-in
    tiles; fails: the engine ends when it looks for it."""

    TUNED = "tuned"
    FALLBACK = "fallback"
    DEFAULT = "default"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What a node said: where its engine lies ('' for nowhere), versions by package, texts by folder and name."""

    root: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an engine will take on one node for one wanted file. folder, name, sha256: '' where there is none"""

    state: State
    folder: str = ""
    name: str = ""
    sha256: str = ""
    flaws: tuple[Flaw, ...] = ()

    @property
    def harms(self) -> bool:
        """Whether an engine would fail or answer wrongly with it."""
        return any(flaw.severity is Severity.STOP for flaw in self.flaws)


def holdings_of(answer: Any) -> Holdings:
    """The node application's answer (node/tuning/tuned.py). Raises ValueError for anything else."""
    folders = answer.get("folders") if isinstance(answer, Mapping) else None
    if not isinstance(folders, Mapping) or not all(isinstance(texts, Mapping) for texts in folders.values()):
        raise ValueError("no folders")
    return Holdings(
        root=str(answer.get("root") or ""),
        versions=_texts(answer.get("distributions")),
        folders={str(folder): _texts(texts) for folder, texts in folders.items()},
        absent=tuple(map(str, answer.get("absent") or ())),
        errors=_texts(answer.get("errors")),
    )


def judged(wanted: Wanted, lookup: Lookup, held: Holdings) -> Holding:
    """What becomes of one wanted file on one node."""
    if wanted.kernel == "moe" and lookup.by_triton and wanted.folder.rpartition("/")[0] in held.absent:
        missing = wanted.folder.rpartition("/")[0]
        return Holding(
            state=State.FAILS,
            flaws=(Flaw(Severity.STOP, f"{missing} does not exist, but the engine reads it: FileNotFoundError"),),
        )
    found = resolve(wanted, lookup, held.folders)
    if not found.folder:
        return Holding(state=State.DEFAULT)
    text = held.folders[found.folder][found.name]
    return Holding(
        state=State.FALLBACK if found.fallback or found.name != wanted.name else State.TUNED,
        folder=found.folder,
        name=found.name,
        sha256=digest(text),
        flaws=flaws(found.name, text),
    )


def digest(text: str) -> str:
    """SHA-256 of a file that was read as text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _texts(raw: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in raw.items()} if isinstance(raw, Mapping) else {}
