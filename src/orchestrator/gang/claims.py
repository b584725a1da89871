"""Whose turn it is to change a gang behind the router. Pure.

A claim on the router's host says who changes a gang now. A command that takes a serving gang out waits for the claim,
and until no other gang behind the router is on its way up or down. One that takes nothing from clients (a gang that is
down is recovered or started, `--all-at-once`) only announces itself: it has the claim where it is free, and goes on
without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory

EXPIRES_S = 30.0
"""A claim without a heartbeat for so long belongs to a dead command."""


class Way(Enum):
    """How a command goes about other commands' changes. REDIRECTED: its operator redirects requests, not the router."""

    WAITS = "waits"
    REDIRECTED = "redirected"
    AT_ONCE = "at once"


class TurnNeed(Enum):
    """TAKES_OUT: a gang that serves will not, behind the router. REDIRECTED: as far as its operator redirects its
    requests, or no other one is known behind the router."""

    TAKES_OUT = "takes out"
    REDIRECTED = "redirected"
    ANNOUNCES = "announces"


class Found(Enum):
    """The claim after an attempt to take it. BUSY: it is ours, and another gang is on its way up or down; AWAY: the
    router's host can't be asked."""

    OURS = "ours"
    BUSY = "busy"
    HELD = "held"
    AWAY = "away"


class ClaimStep(Enum):
    """LATE: the command has waited as long as it may; REFUSE: nobody can know whether it may go on."""

    GO = "go"
    WAIT = "wait"
    LATE = "late"
    REFUSE = "refuse"


CLAIM_STEPS: Mapping[TurnNeed, Mapping[Found, ClaimStep]] = {
    TurnNeed.TAKES_OUT: {
        Found.OURS: ClaimStep.GO,
        Found.BUSY: ClaimStep.WAIT,
        Found.HELD: ClaimStep.WAIT,
        Found.AWAY: ClaimStep.REFUSE,
    },
    TurnNeed.REDIRECTED: {
        Found.OURS: ClaimStep.GO,
        Found.BUSY: ClaimStep.WAIT,
        Found.HELD: ClaimStep.WAIT,
        Found.AWAY: ClaimStep.GO,
    },
    TurnNeed.ANNOUNCES: dict.fromkeys(Found, ClaimStep.GO),
}


def taking_turns(inventory: Inventory) -> tuple[GangSpec, ...]:
    """The gangs of which one is out at a time: all behind the router; () where there is no router. One that is alone in
    this inventory may stand beside others' gangs."""
    return inventory.gangs if inventory.router is not None else ()


def need(way: Way, views: Collection[GangView], mine: Collection[str]) -> TurnNeed:
    """views: of the gangs that take turns; mine: those that the command is about to take out.

    One that is alone in its inventory waits for whoever has the claim, and for no router that does not answer.
    """
    if way is Way.AT_ONCE or not any(view.serves for view in views if view.name in mine):
        return TurnNeed.ANNOUNCES
    return TurnNeed.REDIRECTED if way is Way.REDIRECTED or len(views) < 2 else TurnNeed.TAKES_OUT


_CHANGING = (
    GangState.ARMED,
    GangState.STARTING,
    GangState.WARMING,
    GangState.DRAINING,
    GangState.STOPPING,
)


def changing(views: Iterable[GangView], mine: Collection[str]) -> list[GangView]:
    """Gangs of others that may serve soon, or serve no longer soon, whoever starts or stops them."""
    return [view for view in views if view.name not in mine and view.state in _CHANGING]


def claim_step(wanted: TurnNeed, state: Found, left_s: float) -> ClaimStep:
    """What to do now. left_s: what the command may still wait."""
    step = CLAIM_STEPS[wanted][state]
    return ClaimStep.LATE if step is ClaimStep.WAIT and left_s <= 0 else step
