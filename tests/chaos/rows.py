"""The chaos table as rows: each group of table.yml stands for every combination of what it lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).resolve().parent / "table.yml"
PLACES = {"leader": "node0", "worker": "node2"}
"""The nodes of four that stand for their kind."""
RANKS = {"leader": 0, "worker": 5}
ENDS = ("state", "blames", "verb", "meanwhile", "then", "failed_requests", "says")


@dataclass(frozen=True)
class Row:
    """One line of the table: what is hit, on which node, at which moment, how, and how it must end.

    deaths: how the ranks die, as `lab up --deaths` says
    slow:   it waits for a lease or longer, and leaves the machine to others meanwhile
    """

    hit: str
    where: str
    at: str
    how: str
    end: Mapping[str, Any] = field(hash=False)
    first: str = ""
    deaths: str = "plain"
    ci: bool = False

    @property
    def id(self) -> str:
        """A name of its own."""
        words = [self.where, self.hit, self.how, "at", self.at]
        words += ["with", self.first] if self.first else []
        words += ["dying", "as", self.deaths] if self.deaths != "plain" else []
        words += ["then", *self.steps] if self.steps else []
        return "-".join("-".join(words).replace(" ", "-").split("-"))

    @property
    def node(self) -> str:
        """The node that is hit."""
        return PLACES[self.where]

    @property
    def rank(self) -> int:
        """The TP rank that stands for the node's."""
        return RANKS[self.where]

    @property
    def steps(self) -> tuple[str, ...]:
        """What an operator does afterwards."""
        then = self.end.get("then", ())
        return (then,) if isinstance(then, str) else tuple(then)

    @property
    def slow(self) -> bool:
        """It waits for a lease, a reboot or a hung engine."""
        return self.hit == "fault" or self.how == "STOP"


def table() -> list[Row]:
    """The rows in the file's order."""
    return list(read(yaml.safe_load(TABLE.read_text())))


def read(document: Mapping[str, Any]) -> Iterator[Row]:
    """Every combination of every group."""
    marked = set(document.get("ci") or ())
    for group in document["rows"]:
        for where, at, how in product(*(_list(group[key]) for key in ("where", "at", "how"))):
            first, deaths = group.get("with", ""), group.get("deaths", "plain")
            row = Row(group["hit"], where, at, how, group["end"], first=first, deaths=deaths)
            yield replace(row, ci=row.id in marked)


def _list(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
