"""The faults of a lab's nodes, as a file in the lab's directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from l40s_lab import files

FILE = "faults.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One fault of a node: its name, the arguments typed after it, and the data needed to heal it."""

    fault: str
    words: tuple[str, ...] = ()
    undo: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join((self.fault, *self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node's faults, oldest first; covers: paths where something is mounted over what the node showed at first."""

    broken: tuple[Broken, ...] = ()
    covers: tuple[str, ...] = ()

    def without(self, one: Broken) -> NodeState:
        """The same state without one fault."""
        return replace(self, broken=tuple(other for other in self.broken if other is not one))


def read(directory: Path) -> dict[str, NodeState]:
    """Node -> its state, for nodes that have one; raises ValueError if the file is damaged."""
    try:
        raw = json.loads((directory / FILE).read_text())
    except FileNotFoundError:
        return {}
    return {
        name: NodeState(
            broken=tuple(
                Broken(fault=one["fault"], words=tuple(one["words"]), undo=one["undo"]) for one in state["broken"]
            ),
            covers=tuple(state["covers"]),
        )
        for name, state in raw.items()
    }


def write(directory: Path, states: Mapping[str, NodeState]) -> None:
    """Replace the file; nodes without a fault are left out."""
    kept = {name: asdict(state) for name, state in states.items() if state.broken or state.covers}
    files.put(directory / FILE, json.dumps(kept))
