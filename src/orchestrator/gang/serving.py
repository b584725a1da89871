"""By which names the gangs behind the router are asked for, and which nobody would serve once a gang is out. Pure.

A request names a model and is answered by the gangs that serve that name alone: those of other names take nothing over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

Names = tuple[str, ...]
"""What requests may name to come to one gang, its model's own name first; '' among them where it is unknown, which
counts as the same."""
Serving = Mapping[str, Names]
"""The names of everybody that the router sends requests to: by a gang's name, or by the address of one that the
inventory does not have."""
UNKNOWN_NAMES: Names = ("",)


class Serves(Protocol):
    """A gang as it is seen, or as it is to be started."""

    @property
    def model(self) -> str:
        """The profile's name."""
        ...

    @property
    def served(self) -> Names:
        """What its engine was told to answer to; () where that was not written down."""
        ...


def names_of(gang: Serves, aliases: Iterable[str] = ()) -> Names:
    """The one answer to what a gang is asked for: what its engine was told, else the profile's name, and the router's
    aliases for it."""
    return tuple(dict.fromkeys((*(gang.served or (gang.model,)), *aliases)))


def lost_names(leaving: Collection[str], serving: Serving) -> Names:
    """Names that nobody serves once all of these are out; '' for one that is unknown."""
    gone = [name for gang in leaving for name in serving.get(gang, ())]
    return not_among(gone, [names for gang, names in serving.items() if gang not in leaving])


def not_among(names: Iterable[str], others: Iterable[Names]) -> Names:
    """Those of these names that none of the others has."""
    left = {name for its in others for name in its}
    return tuple(sorted(name for name in {*names} if not _is_among(name, left)))


def _is_among(name: str, others: Collection[str]) -> bool:
    return bool(others) and (name == "" or name in others or "" in others)


def alone(gangs: Iterable[str], serving: Serving) -> tuple[str, ...]:
    """Those of these gangs whose model nobody else serves by its own name while they are out, one at a time. What is
    lost of their other names is only said."""
    return tuple(
        gang for gang in gangs if serving.get(gang, ())[:1] and serving[gang][0] in lost_names([gang], serving)
    )


def name_words(names: Iterable[str]) -> str:
    """'gpt-oss-120b', 'a, b', or 'this model' where it is unknown."""
    return ", ".join(name or "this model" for name in names)
