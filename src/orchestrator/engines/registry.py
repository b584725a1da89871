"""Dialects: families of engine versions and what changed between them, one file each, found by scanning this package;
and the engine that a stack names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from orchestrator import engines
from orchestrator.engines.engine import Engine
from orchestrator.model.chosen import no_such
from orchestrator.model.engine_versions import order
from orchestrator.model.finding import Finding
from orchestrator.model.profile import Stack
from orchestrator.protocol.severity import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family of an engine's versions.

    product:  what people call the engine
    versions: those whose flags are known, as a rule from their wheels (scripts/engine_facts.py), oldest first
    stack:    the shipped stack that serves this family unless another is named
    of:       facts of one of `versions`
    """

    name: str
    product: str = "SGLang"
    versions: tuple[str, ...]
    stack: str
    of: Callable[[str], Engine]

    def lists(self, version: str) -> bool:
        """Whether this version's flags are known; the builder's own part (+cu130) counts for nothing."""
        return version.partition("+")[0] in self.versions

    def nearest(self, version: str) -> str:
        """The listed version whose facts are taken for this one: the fewest releases away, the older one of two."""
        wanted = _position(version)
        return min(sorted(self.versions, key=order), key=lambda listed: abs(_position(listed) - wanted))

    def engine(self, version: str) -> Engine:
        """What this version knows; for one that is not listed, what the nearest one does."""
        return _facts(self, self.nearest(version))


@cache
def _facts(family: Dialect, listed: str) -> Engine:
    """Made once: planning asks for them layout by layout."""
    return family.of(listed)


T = TypeVar("T")


def since(*steps: tuple[str, T]) -> Callable[[str], T]:
    """One fact by version range: (first version, value) in order, each of which holds until the next one's first
    version, and the first before it too. `since(("0.5.10", "/health"), ("0.5.23", "/ready"))`."""

    def at(version: str) -> T:
        (_, value), *later = steps
        return [value, *(changed for first, changed in later if order(first) <= order(version))][-1]

    return at


def _position(version: str) -> int:
    return sum(number * 1000**place for place, number in enumerate(reversed(order(version))))


UNLISTED = "ENGINE-UNLISTED"
DEFAULT = "SGLang"
"""The engine of which most is known here: what is taken where nobody names one."""


@cache
def dialects() -> Mapping[str, Dialect]:
    """By name: the default engine's last, of those the family with the newest versions."""
    modules = (
        importlib.import_module(f"{engines.__name__}.{module_info.name}")
        for module_info in pkgutil.iter_modules(engines.__path__)
    )
    known = [module.DIALECT for module in modules if isinstance(getattr(module, "DIALECT", None), Dialect)]
    return {
        known_dialect.name: known_dialect
        for known_dialect in sorted(
            known, key=lambda known_dialect: (known_dialect.product == DEFAULT, order(known_dialect.versions[-1]))
        )
    }


def newest() -> Dialect:
    """The default engine's family with the newest versions."""
    return list(dialects().values())[-1]


def load_paths() -> tuple[str, ...]:
    """Where an engine of any version may say how many requests it has, the newest family's paths first.

    For an engine whose version is not at hand: it answers 404 on the others' paths.
    """
    engines_known = [
        known_dialect.engine(known_dialect.versions[-1]) for known_dialect in reversed(list(dialects().values()))
    ]
    return tuple(dict.fromkeys(path for engine in engines_known for path in engine.load_paths))


def first_with(variable: str) -> str:
    """The default engine's oldest listed version that has an environment variable of this meaning; '' for none."""
    listed = (
        (known_dialect, version)
        for known_dialect in dialects().values()
        if known_dialect.product == DEFAULT
        for version in known_dialect.versions
    )
    return next(
        (version for known_dialect, version in listed if variable in known_dialect.engine(version).variables), ""
    )


def dialect(name: str) -> Dialect:
    """The dialect with this name; InputError names the nearest ones."""
    try:
        return dialects()[name]
    except KeyError:
        raise no_such("engine dialect", name, dialects(), where="stack: dialect") from None


def engine_of(stack: Stack) -> Engine:
    """What the stack's engine version knows. Raises InputError for an unknown dialect."""
    return dialect(stack.dialect).engine(stack.engine_version)


def unlisted(stack: Stack) -> Finding | None:
    """The finding about a stack whose engine version its dialect does not list; None where it does."""
    family = dialect(stack.dialect)
    if family.lists(stack.engine_version):
        return None
    near = family.nearest(stack.engine_version)
    other = next(
        (known_dialect.name for known_dialect in dialects().values() if known_dialect.lists(stack.engine_version)), ""
    )
    fix = f"use one of the versions {', '.join(family.versions)}, or check the first start with `l40s-deploy logs`"
    return Finding(
        id=UNLISTED,
        severity=Severity.UNKNOWN,
        node="",
        title=f"stack {stack.name}: {family.product} {stack.engine_version} is not listed by dialect {family.name};"
        f" it is treated as {near}, the nearest version",
        evidence=(f"dialect {family.name} lists {', '.join(family.versions)}",),
        effect="its flags, health paths, log lines and tuned config folders may differ: a start may fail, and"
        " progress and causes may be missed",
        fix=f"set `dialect: {other}` in the stack's file" if other else fix,
    )
