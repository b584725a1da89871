"""What a node has of the configs that its engine looks for: which file it will take, and whether that can be used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from orchestrator.engines.tuned_files import Lookup
from orchestrator.engines.tuned_validity import Flaw, flaws
from orchestrator.engines.tuned_wanted import Wanted, resolve
from orchestrator.model.finding import Severity
from orchestrator.protocol.looks import Holdings


class State(str, Enum):
    """tuned: the very file; fallback: another Triton's, or the up projection's; default: none, the engine's built-in
    tiles; fails: the engine ends when it looks for it."""

    TUNED = "tuned"
    FALLBACK = "fallback"
    DEFAULT = "default"
    FAILS = "fails"


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
