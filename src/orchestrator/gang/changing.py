"""What a plan does to running gangs: which are started, which take turns, and which serve meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.model.gang_state import GangState


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStanding:
    """One gang of the plan. same: it runs what the plan wants; serving: it answers requests now."""

    name: str
    state: GangState
    same: bool = False
    serving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSchedule:
    """Names of gangs.

    rise:  nothing runs there, or already what the plan wants: starting them interrupts no service
    turns: stopped and started with the new plan, one after the other; those that do not serve come first
    busy:  those of `turns` that are starting with another plan
    alone: those of `turns` that stop while nothing else serves
    """

    rise: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


def course(gangs: Sequence[GangStanding], *, elsewhere: int) -> ChangeSchedule:
    """elsewhere: how many gangs outside the plan serve behind the same router."""
    other = [gang for gang in gangs if not gang.same]
    busy = [gang for gang in other if gang.state.loads]
    turns = sorted([*busy, *(gang for gang in other if gang.state.was_ready)], key=lambda gang: gang.serving)
    rise = [gang for gang in gangs if gang not in turns]
    # from the second turn on, the gang of the turn before serves again
    alone = [] if elsewhere or rise or any(gang.serving for gang in turns[1:]) else turns[:1]
    return ChangeSchedule(rise=_names(rise), turns=_names(turns), busy=_names(busy), alone=_names(alone))


def _names(gangs: Sequence[GangStanding]) -> tuple[str, ...]:
    return tuple(gang.name for gang in gangs)
