"""What came of asking many nodes at once: a failed node is a value beside the others' results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.model.errors import DeployError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PerNode(Generic[T]):
    """Results and failures by node name; every node that was asked is in exactly one of the two."""

    values: Mapping[str, T]
    failures: Mapping[str, DeployError]

    def all(self) -> Mapping[str, T]:
        """The results where every node answered; else raise the first failure (in the order of asking)."""
        for failure in self.failures.values():
            raise failure
        return self.values
