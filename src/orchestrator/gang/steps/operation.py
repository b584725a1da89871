"""One command's work on gangs: the nodes and the router's host are connected in one place, the gangs chosen once, and
what was seen of them is handed on from step to step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.host import gangs_and_router, router_gang
from orchestrator.gang.steps.standing import as_standing, to_start, undecided
from orchestrator.gang.steps.status.reports import as_it_runs, everything, see
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.verbs import ReportAnswer
from orchestrator.remote.fleet import Fleet, StragglerWait

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a command has before it knows what to do.

    inventory: with its gangs as the command means them
    fleet:     every node of the inventory, each connected when it is first asked
    router:    the inventory's, its host connected when it is first asked; None where there is none
    """

    inventory: Inventory
    fleet: Fleet
    router: Router | None

    def on(self, inventory: Inventory) -> Self:
        """The same machines, with their gangs as this inventory has them."""
        self.fleet.mean(inventory.nodes)
        return replace(self, inventory=inventory)

    def as_standing(self) -> Self:
        """With the gangs as they stand: those that were started with --replicas are a gang for each node."""
        return self.on(as_standing(self.inventory, self._answers(undecided(self.inventory))))

    def asked(self) -> AskedOperation:
        """With what the nodes report now."""
        gangs = undecided(self.inventory) if self.router is None else self.inventory.gangs
        return AskedOperation(
            inventory=self.inventory, fleet=self.fleet, router=self.router, answers=self._answers(gangs)
        )

    def to_start(self, names: Collection[str], *, replicas: bool) -> AskedOperation:
        """With what the nodes report now, and with the gangs of these names (none: all) as a start means them. Raises
        InputError where one of them runs the other way."""
        asked = self.asked()
        return asked.on(to_start(self.inventory, asked.answers, names, replicas=replicas))

    def _answers(self, gangs: Iterable[GangSpec]) -> PerNode[ReportAnswer]:
        names = [node.name for gang in gangs for node in gang.machines]
        return everything(self.fleet, names, patience=StragglerWait())

    def parts(self, names: Sequence[str]) -> Iterator[tuple[Fleet, tuple[GangSpec, ...]]]:
        """The gangs of these names with the nodes, and the router's own, where it is named or nothing is, with its
        host. Raises InputError for an unknown name."""
        for gangs in gangs_and_router(self.inventory, names):
            if self.router is not None and gangs == (self.router.gang,):
                yield self.router.fleet, gangs
            else:
                yield self.fleet, gangs

    def look(
        self, gangs: Iterable[GangSpec] | None = None, *, patience: StragglerWait | None = None
    ) -> tuple[GangView, ...]:
        """These gangs, by default every one of the inventory, as they are now."""
        return see(self.fleet, self.inventory.gangs if gangs is None else gangs, patience=patience)

    def glance(self, gangs: Iterable[GangSpec] | None = None) -> tuple[GangView, ...]:
        """The same without those nodes that do not answer while the others do: what is done next waits for none."""
        return self.look(gangs, patience=StragglerWait())

    def as_they_run(self, gangs: Iterable[GangSpec]) -> tuple[GangSpec, ...]:
        """Each gang on the nodes of its newest run: a gang that goes on without a node restarts without it."""
        chosen = tuple(gangs)
        return tuple(as_it_runs(gang, view) for gang, view in zip(chosen, self.glance(chosen), strict=True))

    def serving_router(self) -> Router | None:
        """The router, where one serves."""
        return self.router if self.router is not None and self.router.view().serves else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOperation(Operation):
    """One that has asked the nodes what they know of gangs.

    answers: what the nodes last reported of all gangs; behind a router those of every node, else of those that decide
             how their gang stands. A node that answered late is among the failures
    """

    answers: PerNode[ReportAnswer]


@contextmanager
def connected(inventory: Inventory, *, asks_lost: bool = True) -> Iterator[Operation]:
    """The one place where a command connects the nodes and the router's host. asks_lost: as of Fleet"""
    with ExitStack() as opened:
        fleet = opened.enter_context(Fleet(inventory.nodes, hands_over=True, asks_lost=asks_lost))
        router = None
        if inventory.router is not None:
            host = opened.enter_context(Fleet(router_gang(inventory.router).nodes, asks_lost=asks_lost))
            router = Router(inventory.router, host)
        yield Operation(inventory=inventory, fleet=fleet, router=router)


def standing_inventory(inventory: Inventory) -> Inventory:
    """The inventory with its gangs as they stand: those that were started with --replicas are a gang for each node."""
    with connected(inventory) as operation:
        return operation.as_standing().inventory
