"""A dialect: one family of engine versions. One file of this package each; `registry` finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.engines.engine import Engine
from orchestrator.engines.since import nearest, public


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family of SGLang versions.

    versions: those whose wheels were read (scripts/engine_facts.py), oldest first
    stack:    the shipped stack that serves this family unless another is named
    of:       facts of one of `versions`
    """

    name: str
    versions: tuple[str, ...]
    stack: str
    of: Callable[[str], Engine]

    def lists(self, version: str) -> bool:
        """Whether this version's wheel was read; the builder's own part (+cu130) counts for nothing."""
        return public(version) in self.versions

    def nearest(self, version: str) -> str:
        """The listed version whose facts are taken for this one: itself where it is listed."""
        return nearest(version, self.versions)

    def engine(self, version: str) -> Engine:
        """What this version knows; for one that is not listed, what the nearest one does."""
        return self.of(self.nearest(version))
