"""Every dialect, found by scanning this package, and the engine that a stack names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from orchestrator import engines
from orchestrator.engines.dialect import Dialect, order
from orchestrator.engines.engine import Engine
from orchestrator.model.chosen import no_such
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.profile import Stack

UNLISTED = "ENGINE-UNLISTED"
DEFAULT = "SGLang"
"""The engine of which most is known here: what is taken where nobody names one."""


@cache
def dialects() -> Mapping[str, Dialect]:
    """By name: the default engine's last, of those the family with the newest versions."""
    modules = (
        importlib.import_module(f"{engines.__name__}.{one.name}") for one in pkgutil.iter_modules(engines.__path__)
    )
    found = [module.DIALECT for module in modules if isinstance(getattr(module, "DIALECT", None), Dialect)]
    return {one.name: one for one in sorted(found, key=lambda one: (one.product == DEFAULT, order(one.versions[-1])))}


def newest() -> Dialect:
    """The default engine's family with the newest versions."""
    return list(dialects().values())[-1]


def load_paths() -> tuple[str, ...]:
    """Where an engine of any version may say how many requests it has, the newest family's paths first.

    For an engine whose version is not at hand: it answers 404 on the others' paths.
    """
    engines_known = [one.engine(one.versions[-1]) for one in reversed(list(dialects().values()))]
    return tuple(dict.fromkeys(path for engine in engines_known for path in engine.load_paths))


def first_with(variable: str) -> str:
    """The default engine's oldest listed version that has an environment variable of this meaning; '' for none."""
    families = (one for one in dialects().values() if one.product == DEFAULT)
    listed = [(one, version) for one in families for version in one.versions]
    return next((version for one, version in listed if variable in one.engine(version).variables), "")


def dialect(name: str) -> Dialect:
    """The dialect with this name; InputError names the nearest ones."""
    try:
        return dialects()[name]
    except KeyError:
        raise no_such("engine dialect", name, dialects(), where="stack: dialect") from None


def engine_of(stack: Stack) -> Engine:
    """What the stack's engine version knows. Raises InputError for an unknown dialect."""
    return dialect(stack.dialect).engine(stack.engine_version)


def unlisted(stack: Stack, *, node: str = "") -> Finding | None:
    """The finding about a stack whose engine version its dialect does not list; None where it does."""
    family = dialect(stack.dialect)
    if family.lists(stack.engine_version):
        return None
    near = family.nearest(stack.engine_version)
    other = next((one.name for one in dialects().values() if one.lists(stack.engine_version)), "")
    fix = (
        f"set `dialect: {other}` in the stack's file"
        if other
        else (f"use one of the versions {', '.join(family.versions)}")
    )
    return Finding(
        id=UNLISTED,
        severity=Severity.UNKNOWN,
        node=node,
        title=f"stack {stack.name}: {family.product} {stack.engine_version} is not listed by dialect {family.name};"
        f" it is treated as {near}, the nearest version",
        evidence=(f"dialect {family.name} lists {', '.join(family.versions)}",),
        effect="its flags, health paths, log lines and tuned config folders may differ: a start may fail, and"
        " progress and causes may be missed",
        fix=fix if other else f"{fix}, or check the first start with `l40s-deploy logs`",
    )
