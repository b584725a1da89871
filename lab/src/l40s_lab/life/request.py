"""The operator's request, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from l40s_lab.life.addressing import MAX_NODES
from orchestrator.protocol.errors import InputError

Engine = Literal["standin", "sglang", "vllm", "none"]
Gpus = Literal["emulated", "host"]
Deaths = Literal["plain", "cuda"]
MAX_RANKS = 8
"""The GPUs of a node of the reference cluster."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A requested lab.

    nodes:    in all gangs together; None: as in the wiring, the inventory or the recordings
    gangs:    None: one, or those of the inventory
    like:     path of an inventory whose gangs, node names and GPU counts it should have
    recorded: path of snapshots that its nodes should look like
    deaths:   how the stand-in's ranks die: at once, or like processes with CUDA
    level:    None: chosen for this machine
    gpus:     emulated, or host: the real ones of this machine, shared out among the nodes
    ranks:    of the real engine on CPU, on each node
    stack:    with the GPUs of this machine, the engine's: a name or a .yml file
    """

    name: str = "lab"
    nodes: int | None = None
    gangs: int | None = None
    wiring: str = "right"
    like: str | None = None
    recorded: str | None = None
    level: Literal[0, 1, 2] | None = None
    engine: Engine = "standin"
    ranks: int = 1
    gpus: Gpus = "emulated"
    stack: str | None = None
    deaths: Deaths = "plain"

    def _check_counts(self) -> None:
        if self.nodes is not None and not 1 <= self.nodes <= MAX_NODES:
            raise InputError(f"found {self.nodes}, wanted 1 to {MAX_NODES}", where="--nodes", fix="--nodes 4")
        if self.gangs is not None and self.gangs < 1:
            raise InputError(f"found {self.gangs}, wanted 1 or more", where="--gangs", fix="--gangs 1")

    def check(self) -> None:
        """Raise InputError for values that are invalid, alone or together."""
        check_name(self.name)
        self._check_counts()
        self._check_engine()
        if self.like is not None and (self.nodes is not None or self.gangs is not None):
            raise InputError(
                "the inventory determines the nodes and gangs",
                where="--like",
                fix="remove --nodes and --gangs, or --like",
            )
        if self.deaths != "plain" and (self.engine != "standin" or self.gpus == "host"):
            raise InputError(
                f"found {self.deaths}: a real engine's way of dying can't be chosen",
                where="--deaths",
                fix="remove --deaths",
            )
        if self.recorded is not None and self.wiring != "right":
            raise InputError("recorded machines have their own wiring", where="--from", fix="leave out --wiring")
        if self.gpus == "host":
            self._check_host()
        elif self.stack is not None:
            raise InputError(
                "a stack's engine can't run on emulated GPUs", where="--stack", fix="use --gpus host, or remove --stack"
            )

    def _check_engine(self) -> None:
        if self.engine == "none":
            self._check_level(2, "`prepare` needs nodes with a system of their own")
        if not 1 <= self.ranks <= MAX_RANKS:
            raise InputError(f"found {self.ranks}, wanted 1 to {MAX_RANKS}", where="--ranks", fix="--ranks 8")
        if self.ranks > 1 and self.engine in ("standin", "none"):
            raise InputError(
                "the stand-in's ranks are the nodes' GPUs", where="--ranks", fix="use --engine sglang, or --like"
            )

    def _check_host(self) -> None:
        if self.stack is None:
            raise InputError(
                "nodes with real GPUs need a real engine",
                where="--gpus host",
                fix="use --stack NAME (a name in inventory/stacks, or a .yml file)",
            )
        if self.recorded is not None or self.wiring != "right" or self.engine != "standin":
            raise InputError(
                "the nodes show this machine's own hardware and run the stack's engine",
                where="--gpus host",
                fix="remove --wiring, --from and --engine",
            )
        self._check_level(1, "the nodes share this machine's system, and each has its own /dev")

    def _check_level(self, wanted: int, why: str) -> None:
        if self.level not in (None, wanted):
            what, fix = f"found level {self.level}, wanted {wanted}: {why}", f"use --level {wanted}, or remove --level"
            raise InputError(what, where="--level", fix=fix)


def check_name(name: str) -> None:
    """A lab's name becomes a directory and part of a link's mark."""
    if not _NAME.fullmatch(name):
        like = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24]
        raise InputError(
            f"found {name!r}, wanted lower-case letters, digits and dashes, at most 24",
            where="--name",
            fix=f"--name {like if _NAME.fullmatch(like) else 'lab'}",
        )
