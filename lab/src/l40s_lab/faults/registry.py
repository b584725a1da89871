"""How faults are written and found."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.node.living import LivingNode
from orchestrator.protocol.errors import InputError

Words = tuple[str, ...]
Undo = Mapping[str, Any]
"""Data needed for healing, as JSON can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    name:     as it is typed
    argument: what follows the name, in the style of a usage line; '' for nothing
    summary:  what happens, in one line
    shows:    where it can be seen
    levels:   of a lab that can have it
    lasting:  it continues until it is healed; else it is over once it has struck
    rebuilds: healing it restarts the node
    outside:  it is in the node's cable, not in the node
    cures:    not a fault but the end of one, by another name
    change:   turns a healthy machine into a broken one; everything that such a machine shows follows from it
    strike, heal: act on the running node
    """

    name: str
    argument: str = ""
    summary: str
    shows: str
    levels: tuple[int, ...] = (0, 1, 2)
    lasting: bool = True
    rebuilds: bool = False
    outside: bool = False
    cures: str = ""
    change: Callable[[NodeMachine, Words], NodeMachine] | None = None
    strike: Callable[[LivingNode, Words], Undo] | None = None
    heal: Callable[[LivingNode, Undo], None] | None = None

    @property
    def _names(self) -> list[str]:
        return re.sub(r"[\[\]]", "", self.argument).split()

    def refuse_more(self, words: Words) -> None:
        """Refuse more arguments than the fault takes."""
        most = len(self._names)
        if len(words) > most:
            wanted = f"at most {most}" if most else "nothing"
            raise InputError(
                f"found {len(words)} words ({' '.join(words)}), wanted {wanted}",
                where="ARG",
                fix="l40s-deploy lab faults",
            )

    def done(self, words: Words) -> str:
        """The summary of what was done: given words, or defaults of one word, in place of the arguments' names."""
        text = self.summary
        for place, name in reversed([*enumerate(self._names)]):  # a default belongs to the last name before it
            given = words[place] if place < len(words) else ""
            default = re.search(rf"\b{re.escape(name)}\b([^()]*) \(default: ([^;,)]*)([^)]*)\)", text)
            if default is not None and (given or " " not in default[2]):
                text = text.replace(default[0], (given or default[2] + _as_from(default[3])) + default[1])
            if given and name.isupper():
                text = given.join(re.split(rf"\b{re.escape(name)}\b", text))
        return text


def _as_from(words: str) -> str:
    return words if words.startswith(", as") else ""


@cache
def all_faults() -> tuple[Fault, ...]:
    """Every fault, by name."""
    modules = [importlib.import_module(f"l40s_lab.faults.{name}") for name in ("hardware", "network", "processes")]
    return tuple(sorted((fault for module in modules for fault in module.FAULTS), key=lambda fault: fault.name))


def find(name: str) -> Fault:
    """The fault of this name; raises InputError with the most similar names."""
    known = {fault.name: fault for fault in all_faults()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"unknown fault {name!r}{hint}", where="FAULT", fix="list them with `l40s-deploy lab faults`")
