"""What the operator asked for, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.lab.life.addressing import MAX_NODES
from orchestrator.model.errors import InputError

Engine = Literal["standin", "sglang"]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A lab as it is wanted.

    nodes:    in all gangs together; None: as the wiring, the inventory or the recordings have them
    gangs:    None: one, or those of the inventory
    like:     path of an inventory whose gangs, node names and GPU counts it shall have
    recorded: path of snapshots that its nodes shall look like
    level:    None lets the machine decide
    """

    name: str = "lab"
    nodes: int | None = None
    gangs: int | None = None
    wiring: str = "right"
    like: str | None = None
    recorded: str | None = None
    level: Literal[0, 1, 2] | None = None
    engine: Engine = "standin"

    def check(self) -> None:
        """Raise InputError for values that cannot be, or not together."""
        check_name(self.name)
        if self.nodes is not None and not 1 <= self.nodes <= MAX_NODES:
            raise InputError(f"found {self.nodes}, wanted 1 to {MAX_NODES}", where="--nodes", fix="--nodes 4")
        if self.gangs is not None and self.gangs < 1:
            raise InputError(f"found {self.gangs}, wanted 1 or more", where="--gangs", fix="--gangs 1")
        if self.like is not None and (self.nodes is not None or self.gangs is not None):
            raise InputError(
                "the inventory says which nodes and gangs there are",
                where="--like",
                fix="leave out --nodes and --gangs, or --like",
            )
        if self.recorded is not None and self.wiring != "right":
            raise InputError("recorded machines bring their own wiring", where="--from", fix="leave out --wiring")


def check_name(name: str) -> None:
    """A lab's name becomes a directory and part of a link's mark."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"found {name!r}, wanted lower-case letters, digits and dashes, at most 24",
            where="--name",
            fix="--name lab",
        )
