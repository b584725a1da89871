"""What a plan does to running gangs: which are started, which take turns, and which serve meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.model.gang_state import GangState

_SERVING = (GangState.READY, GangState.DEGRADED)
_RISING = (GangState.STARTING, GangState.WARMING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One gang of the plan. same: what runs there is what the plan wants; serving: requests are answered now."""

    name: str
    state: GangState
    same: bool = False
    serving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """By name.

    rise:  nothing runs there, or this very plan: nobody loses anything
    turns: stop, and start with the new plan, one after the other; who does not serve comes first
    busy:  of the turns, those that are on their way up with another plan
    alone: of the turns, those that nobody would serve in place of
    """

    rise: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


def course(gangs: Sequence[Standing], *, elsewhere: int) -> Course:
    """elsewhere: gangs that serve behind the same router and are not part of the plan."""
    busy = [gang for gang in gangs if gang.state in _RISING and not gang.same]
    serving = [gang for gang in gangs if gang.state in _SERVING and not gang.same]
    turns = sorted([*busy, *serving], key=lambda gang: gang.serving)
    rise = tuple(gang.name for gang in gangs if gang not in turns)
    in_place = elsewhere + len(rise)
    return Course(
        rise=rise,
        turns=tuple(gang.name for gang in turns),
        busy=tuple(gang.name for gang in busy),
        alone=tuple(
            gang.name
            for place, gang in enumerate(turns)
            if not (in_place or place or any(other.serving for other in turns if other is not gang))
        ),
    )
