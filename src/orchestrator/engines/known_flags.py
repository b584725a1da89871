"""The command line flags that one engine version knows, and checking words against them.

The lists in flags/ are taken from the versions' own parsers by scripts/engine_facts.py; by hand only for a version that
has no wheel yet. They are part of this package as its code is, not a user's file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from math import isfinite
from typing import Literal

from orchestrator.protocol.errors import InputError

Takes = Literal["none", "one", "optional", "many"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFlag:
    """One flag as the version's parser declares it.

    takes:      how many values follow
    kind:       int, float, text or bool
    choices:    the only values that the parser takes; empty where it takes any
    deprecated: what the version says to use instead, '' for a flag in good standing
    """

    name: str
    aliases: tuple[str, ...] = ()
    takes: Takes = "one"
    kind: str = "text"
    choices: tuple[str, ...] = ()
    negatable: bool = False
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One flag of a command line, in the spelling to pass on; its values, and where they come from."""

    flag: str
    values: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """Every flag of one version, by every full spelling.

    renamed: flags that earlier versions had -> what to use now
    """

    version: str
    by_spelling: Mapping[str, KnownFlag]
    renamed: Mapping[str, str] = field(default_factory=dict)
    product: str = "SGLang"

    def __contains__(self, spelling: object) -> bool:
        return spelling in self.by_spelling

    def flag(self, spelling: str, *, where: str) -> KnownFlag:
        """The flag with this spelling; InputError names its successor or the nearest flags."""
        flag = self.by_spelling.get(spelling)
        if flag is None:
            raise InputError(
                f"{self.product} {self.version} has no flag {spelling}",
                where=where,
                fix=self._instead_of(spelling),
            )
        return flag

    def given(self, words: Sequence[str], *, where: str, source: str = "") -> tuple[Option, ...]:
        """Check a piece of command line and cut it into flags with their values. source: of all of them

        Raises InputError for an unknown or removed flag, a missing or surplus value, a value of the wrong
        kind, and a value that is not among the flag's choices.
        """
        return tuple(self._cut(list(words), where, source))

    def _cut(self, words: list[str], where: str, source: str) -> Iterator[Option]:
        while words:
            word = words.pop(0)
            if not word.startswith("--") or word == "--":
                raise InputError(
                    f"found {word!r}, wanted a flag", where=where, fix="write `--flag value`, with the flag's full name"
                )
            spelling, equals, inline = word.partition("=")
            known = self.flag(spelling, where=where)
            values = [inline] if equals else _values(known, words)
            self._check(known, spelling, values, where)
            yield Option(spelling, tuple(values), source)

    def _check(self, known: KnownFlag, spelling: str, values: Sequence[str], where: str) -> None:
        wanted = {"none": (0, 0), "one": (1, 1), "optional": (0, 1), "many": (1, len(values))}[known.takes]
        if not wanted[0] <= len(values) <= max(wanted):
            words = {"none": "takes no value", "one": "needs one value", "many": "needs at least one value"}
            raise InputError(
                f"{spelling} {words.get(known.takes, 'takes at most one value')}, found {len(values)}",
                where=where,
                fix=f"write {spelling}" + ("" if known.takes == "none" else f" {known.kind.upper()}"),
            )
        for value in values:
            if known.choices and value not in known.choices:
                near = get_close_matches(value, known.choices, n=3) or known.choices
                raise InputError(
                    f"{spelling} {value}: {self.product} {self.version} does not offer this value",
                    where=where,
                    fix="one of: " + ", ".join(near),
                )
            if not _is(known.kind, value):
                raise InputError(
                    f"{spelling} {value!r} is not a valid {known.kind}",
                    where=where,
                    fix=f"give {spelling} a {known.kind}",
                )

    def _instead_of(self, spelling: str) -> str:
        if spelling in self.renamed:
            return self.renamed[spelling]
        longer = [known for known in self.by_spelling if known.startswith(spelling)]
        if near := longer or get_close_matches(spelling, self.by_spelling, n=3, cutoff=0.6):
            return "did you mean " + ", ".join(sorted(near)[:5]) + "? (full names only)"
        command = "vllm serve --help=all" if self.product == "vLLM" else "python3 -m sglang.launch_server --help"
        return f"see `{command}` of {self.product} {self.version}"


def _values(known: KnownFlag, words: list[str]) -> list[str]:
    """Take what belongs to this flag off the front of the words: never another flag."""
    most = {"none": 0, "one": 1, "optional": 1, "many": len(words)}[known.takes]
    taken: list[str] = []
    while words and len(taken) < most and not words[0].startswith("--"):
        taken.append(words.pop(0))
    return taken


def _is(kind: str, value: str) -> bool:
    try:
        return isfinite({"int": int, "float": float}.get(kind, len)(value))
    except (ValueError, OverflowError):
        return False


@lru_cache
def known_flags(version: str, product: str = "SGLang") -> KnownFlags:
    """The flags of one engine version (for example 0.5.23); a version without a list is our own defect."""
    name = f"{product.lower()}-{version}.json"
    document = json.loads(files(__package__).joinpath("flags").joinpath(name).read_text("utf-8"))
    by_spelling: dict[str, KnownFlag] = {}
    for name, raw in document["flags"].items():
        known = KnownFlag(
            name=name,
            aliases=tuple(raw.get("aliases", ())),
            takes=raw["takes"],
            kind=raw["type"],
            choices=tuple(str(choice) for choice in raw.get("choices", ())),
            negatable=bool(raw.get("negatable")),
            deprecated=raw.get("deprecated", ""),
        )
        negated = (f"--no-{name[2:]}",) if known.negatable else ()
        by_spelling.update(dict.fromkeys((name, *known.aliases, *negated), known))
    return KnownFlags(version=document["version"], product=product, by_spelling=by_spelling)
