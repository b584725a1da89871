"""`guard`: watches gangs, and restarts one when a rank died, a lease expired or its engine hangs.

What to do is decided by `gang.guarding`; `post` reads the nodes, acts, and owns the clock; `roster` has a post for each
gang. The router before the gangs is watched beside them, by one guard at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.gang.guarding import GuardDecision
from orchestrator.gang.steps.guard.request import GuardRequest, GuardWatcher
from orchestrator.gang.steps.guard.roster import Roster
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import as_written, chosen_gangs
from orchestrator.model.inventory import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedGang:
    """How one gang was left. decision: the last one; view: as it was seen last."""

    decision: GuardDecision
    view: GangView


def guard(inventory: Inventory, request: GuardRequest, watcher: GuardWatcher) -> tuple[GuardedGang, ...]:
    """Guard the chosen gangs and the router, each by a loop of its own; ends when all are given up, or at once with
    `once`.

    A gang that is given up is still checked with the others: it is guarded again once it has been fixed.
    Where the inventory changes meanwhile, the gangs that it has then are guarded, as it has them.
    Raises LockHeld where another guard watches one of them already; with `once`, whatever a loop breaks by.
    """
    inventory = replace(inventory, gangs=tuple(map(as_written, inventory.gangs)))
    with Roster(inventory, request, watcher) as roster:
        roster.man([gang.name for gang in chosen_gangs(inventory, request.gangs)])
        roster.watch()
        return tuple(
            GuardedGang(decision=post.surrender or post.decision, view=post.view)
            for post in roster.posts.values()
            if post.view is not None
        )
