"""The chaos table as rows: each group of table.yml stands for every combination of what it lists."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).resolve().parent / "table.yml"
KINDS = (
    ("rank", "KILL"), ("rank", "SEGV"), ("parent", "KILL"), ("agent", "KILL"), ("agent", "STOP"),
    ("fault", "power-off"), ("fault", "link-down"), ("fault", "freeze"), ("fault", "gpu-lost 0"),
    ("fault", "one-way-loss 100"), ("fault", "delay 10"), ("fault", "disk-full"),
    ("upset", "reset"), ("upset", "odd-report"),
)  # fmt: skip
"""Faults of a serving gang, in pairs of any two."""
HARMLESS = (("fault", "delay 10"), ("fault", "disk-full"), ("upset", "reset"), ("upset", "odd-report"))
"""Of the kinds, those that end no gang."""
PLACES = {"leader": "node0", "worker": "node2"}
"""The nodes of four that stand for their kind."""
ALL_NODES = ("node0", "node1", "node2", "node3")
RANKS = {"leader": 0, "worker": 5}
ENDING = ("draining", "stopping")


OLDER = "older"
"""In the place of a command that is under way: it is an older release's."""


class NotHere(Exception):
    """This machine can't play the row: no loop devices (a container), no older commit, no router."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what is hit, on which node, at which moment, how, and how it must end.

    deaths: how the ranks die, as `lab up --deaths` says
    second: what is hit right after it, on another node
    under:  the command that is under way, where `at` does not say it: it begins with a gang that serves
    slow:   it waits for a lease or longer, and leaves the machine to others meanwhile
    hears:  what a guard's receivers hear, and how soon; '' where no rule of the table says it
    """

    hit: str
    where: str
    at: str
    how: str
    end: Mapping[str, Any] = field(hash=False)
    first: str = ""
    deaths: str = "plain"
    second: Row | None = None
    under: str = ""
    hears: str = ""

    @property
    def id(self) -> str:
        """A name of its own."""
        words = [self.where, self.hit, self.how, "at", self.at]
        words += ["and", self.second.id] if self.second else []
        words += ["under", self.under.replace("--", "")] if self.under else []
        words += ["with", self.first] if self.first else []
        words += ["dying", "as", self.deaths] if self.deaths != "plain" else []
        words += ["then", *self.steps] if self.steps else []
        return "-".join("-".join(words).replace(" ", "-").split("-"))

    @property
    def node(self) -> str:
        """The node that is hit; the first of several."""
        return self.nodes[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        """All that are hit."""
        return ALL_NODES if self.where == "all" else (PLACES[self.where],)

    @property
    def rank(self) -> int:
        """The TP rank that stands for the node's."""
        return RANKS[self.where]

    @property
    def kind(self) -> str:
        """Of which `make test` plays one row: what is hit; what stands still is another kind than what dies."""
        if self.second is not None:
            return "two faults"
        return "stopped" if self.how == "STOP" else self.hit

    @property
    def steps(self) -> tuple[str, ...]:
        """What an operator does afterwards."""
        then = self.end.get("then", ())
        return (then,) if isinstance(then, str) else tuple(then)

    @property
    def begins_served(self) -> bool:
        """It begins with a gang that serves."""
        return self.at in ("ready", *ENDING) or self.under not in ("", OLDER)

    @property
    def unhealed(self) -> bool:
        """A fault stays, and the command has to end nevertheless."""
        return self.hit == "fault" and "verb" in self.end and "heal" not in self.steps

    @property
    def slow(self) -> bool:
        """It waits for a lease, a reboot or a hung engine."""
        return self.hit == "fault" or self.how == "STOP" or self.second is not None


def table() -> list[Row]:
    """The rows in the file's order."""
    return [*_table()]


@cache
def _table() -> tuple[Row, ...]:
    return tuple(read(yaml.safe_load(TABLE.read_text())))


def read(document: Mapping[str, Any]) -> Iterator[Row]:
    """Every combination of every group."""
    for group in document["rows"]:
        for where, at, how in product(*(_list(group[key]) for key in ("where", "at", "how"))):
            first, deaths = group.get("with", ""), group.get("deaths", "plain")
            row = Row(group["hit"], where, at, how, group["end"], first=first, deaths=deaths)
            row = replace(row, under=group.get("under", ""))
            yield replace(row, hears=_heard_of(row, document.get("hears", ())))


def _heard_of(row: Row, rules: Iterable[Mapping[str, Any]]) -> str:
    """Of the first rule that fits."""
    fits = (rule["hears"] for rule in rules if all(_fits(row, name, rule[name]) for name in rule if name != "hears"))
    return str(next(fits, ""))


def _fits(row: Row, name: str, wanted: Any) -> bool:
    if name == "then":
        return wanted in row.steps
    return str(getattr(row, name)) in _list(wanted)


def two_faults(seed: int, count: int) -> list[Row]:
    """So many rows of two faults on two nodes that serve, of any two kinds of KINDS.

    The cause names one of the two, and nothing is left; healed, the gang starts again. Two that end no gang leave it
    ready.
    """
    chosen = random.Random(seed)
    rows: list[Row] = []
    while len(rows) < count:
        kinds, places = [chosen.choice(KINDS) for _ in range(2)], chosen.sample(sorted(PLACES), 2)
        ends = any(kind not in HARMLESS for kind in kinds)
        end: dict[str, Any] = {"then": ["heal", "serve"], "state": "ready", "failed_requests": 0}
        if ends:
            end = {"meanwhile": {"state": "failed", "blames": "either"}, "then": ["heal", "up"], "state": "ready"}
        first, second = (Row(hit, where, "ready", how, end) for (hit, how), where in zip(kinds, places, strict=True))
        rows.append(replace(first, second=replace(second, end={})))
    return rows


def _list(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
