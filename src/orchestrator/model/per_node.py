"""The result of asking many nodes: a failed one is a value beside the others', and what most have stands out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.protocol.errors import DeployError, Unreachable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PerNode(Generic[T]):
    """Results and failures by node name; every node that was asked is in exactly one of the two."""

    values: Mapping[str, T]
    failures: Mapping[str, DeployError]

    def all(self) -> Mapping[str, T]:
        """The results where every node answered; else raise the failure, of several unreachable nodes one for all."""
        if self.failures:
            raise together(self.failures)
        return self.values

    def ordered(self, names: Sequence[str]) -> PerNode[T]:
        """Results and failures of these nodes, in this order."""
        return PerNode(
            values={name: self.values[name] for name in names if name in self.values},
            failures={name: self.failures[name] for name in names if name in self.failures},
        )


def lost_first(failures: Mapping[str, DeployError]) -> DeployError:
    """The nodes that can't be reached, where there are such; else the first failure: others may fail for their sake."""
    lost = {name: failure for name, failure in failures.items() if isinstance(failure, Unreachable)}
    return together(lost or failures)


def together(failures: Mapping[str, DeployError]) -> DeployError:
    """The first failure, in the order of asking, at all places where it is the same; where several nodes can't be
    reached, one that names each of them."""
    first = next(iter(failures.values()))
    lost = {name: failure for name, failure in failures.items() if isinstance(failure, Unreachable)}
    if len(lost) < 2 or not isinstance(first, Unreachable):
        places = dict.fromkeys(failure.where for failure in failures.values() if _essence(failure) == _essence(first))
        return first if len(places) == 1 else first.at(", ".join(places))
    fixes = dict.fromkeys(failure.fix for failure in lost.values())
    lines = ((", ".join(names), failure.what) for names, failure in same(lost))
    return Unreachable(
        f"{len(lost)} nodes do not answer" + "".join(f"\n    {names}: {what}" for names, what in lines),
        where=", ".join(lost),
        fix="; ".join(fixes),
    )


def same(failures: Mapping[str, DeployError]) -> list[tuple[list[str], DeployError]]:
    """Equal failures once, with the names of their nodes."""
    alike = collected((_essence(failure), name) for name, failure in failures.items())
    return [(names, failures[names[0]]) for names in alike.values()]


def _essence(failure: DeployError) -> Hashable:
    return type(failure), failure.what, failure.fix


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def collected(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """{first: every second that came with it}, both in their order: nodes by what they have in common."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


FEWEST_FOR_A_MAJORITY = 3


def majority(values: Mapping[str, V]) -> tuple[V, dict[str, V]] | None:
    """The value that more than half of at least three nodes have, with the exceptions; None where there are none."""
    if len(values) < FEWEST_FOR_A_MAJORITY:
        return None
    (common, count), *_ = Counter(values.values()).most_common(1)
    odd = {name: value for name, value in values.items() if value != common}
    return (common, odd) if odd and count * 2 > len(values) else None
