"""Descriptors that an agent keeps for its own duties: who uses up the others does not end a gang that serves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from orchestrator.node.os_errors import NO_DESCRIPTORS

KEPT = 24
"""More than a round of an agent's loop has open at a time."""


@dataclass
class Reserve:
    """So many descriptors, held open, given for a round, and taken back as far as there are any.

    missed: rounds that even they were not enough for
    """

    kept: int = 0
    missed: int = 0
    used: bool = False
    _held: list[int] = field(default_factory=list)

    @classmethod
    def full(cls) -> Reserve:
        """With all that an agent needs."""
        reserve = cls(KEPT)
        reserve._refill()
        return reserve

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, they are free; what is out of descriptors all the same is left until the next round."""
        self.used = True
        while self._held:
            os.close(self._held.pop())
        try:
            yield
        except OSError as wrong:
            if wrong.errno not in NO_DESCRIPTORS:
                raise
            self.missed += 1
        finally:
            self._refill()

    def remarks(self) -> list[str]:
        """For the operator."""
        if not self.used:
            return []
        return ["no more files can be opened on this node: the agent uses its reserve (ulimit -n, fs.file-nr)"]

    def _refill(self) -> None:
        with suppress(OSError):
            while len(self._held) < self.kept:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
