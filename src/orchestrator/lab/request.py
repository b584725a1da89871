"""What the operator asked for, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.lab.addressing import MAX_NODES
from orchestrator.model.errors import InputError

Engine = Literal["standin", "sglang"]
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A lab as it is wanted. nodes: in all gangs together. level: None lets the machine decide."""

    name: str = "lab"
    nodes: int = 4
    gangs: int = 1
    wiring: str = "right"
    level: Literal[0, 1, 2] | None = None
    engine: Engine = "standin"

    def check(self) -> None:
        """Raise InputError for a value that cannot be."""
        check_name(self.name)
        if not 1 <= self.nodes <= MAX_NODES:
            raise InputError(f"found {self.nodes}, wanted 1 to {MAX_NODES}", where="--nodes", fix="--nodes 4")
        if not 1 <= self.gangs <= self.nodes or self.nodes % self.gangs:
            raise InputError(
                f"{self.nodes} nodes cannot be divided into {self.gangs} equal gangs",
                where="--gangs",
                fix=f"--gangs {self.gangs} --nodes {self.gangs * 4}" if self.gangs > 0 else "--gangs 1",
            )

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{index}" for index in range(self.nodes))


def check_name(name: str) -> None:
    """A lab's name becomes a directory and part of a link's mark."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"found {name!r}, wanted lower-case letters, digits and dashes, at most 24",
            where="--name",
            fix="--name lab",
        )
