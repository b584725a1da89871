"""How faults are written and found.

A module of this package that defines `FAULT` is a fault. `change` turns a healthy machine into a broken one, and
everything that such a machine shows follows from it; `strike` and `heal` act on the running node. A fault has one of
them or both.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from l40s_lab import faults
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.node.living import LivingNode
from orchestrator.model.errors import InputError

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

    def done(self, words: Words) -> str:
        """The summary of what was done: given words, or defaults of one word, in place of the arguments' names."""
        text = self.summary
        names = re.sub(r"[\[\]]", "", self.argument).split()
        for place, name in reversed([*enumerate(names)]):  # a default belongs to the last name before it
            given = words[place] if place < len(words) else ""
            default = re.search(rf"\b{re.escape(name)}\b([^()]*) \(default: ([^;,)]*)([^)]*)\)", text)
            if default is not None and (given or " " not in default[2]):
                text = text.replace(default[0], (given or default[2] + _as_from(default[3])) + default[1])
            if given and name.isupper():
                text = given.join(re.split(rf"\b{re.escape(name)}\b", text))
        return text


def _as_from(words: str) -> str:
    return words if words.startswith(", as") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A fault with its actions: on the machine, then on the running node, and the undo of the latter."""

    fault: Fault
    change: Callable[[NodeMachine, Words], NodeMachine] | None
    strike: Callable[[LivingNode, Words], Undo] | None
    heal: Callable[[LivingNode, Undo], None] | None


@cache
def all_faults() -> tuple[Loaded, ...]:
    """Every fault of the package, by name."""
    found = []
    for module_info in pkgutil.iter_modules(faults.__path__):
        module = importlib.import_module(f"{faults.__name__}.{module_info.name}")
        if isinstance(getattr(module, "FAULT", None), Fault):
            found.append(
                Loaded(
                    fault=module.FAULT,
                    change=getattr(module, "change", None),
                    strike=getattr(module, "strike", None),
                    heal=getattr(module, "heal", None),
                )
            )
    return tuple(sorted(found, key=lambda loaded: loaded.fault.name))


def find(name: str) -> Loaded:
    """The fault of this name; raises InputError with the most similar names."""
    known = {loaded.fault.name: loaded for loaded in all_faults()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(f"unknown fault {name!r}{hint}", where="FAULT", fix="list them with `l40s-deploy lab faults`")
