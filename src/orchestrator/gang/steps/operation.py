"""One command's work on gangs: the nodes are connected once, the gangs chosen once, and what was seen of them is handed
on from step to step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from orchestrator.gang.steps.standing import as_standing, to_start, undecided
from orchestrator.gang.steps.status.reports import everything
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.verbs import ReportAnswer
from orchestrator.remote.fleet import Fleet, StragglerWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a command has before it knows what to do.

    inventory: with its gangs as the command means them
    fleet:     every node of the inventory, each connected when it is first asked
    answers:   what the nodes last reported of all gangs; behind a router those of every node, else of those that decide
               how their gang stands. A node that answered late is among the failures
    """

    inventory: Inventory
    fleet: Fleet
    answers: PerNode[ReportAnswer]

    def on(self, inventory: Inventory) -> Operation:
        """The same machines, with their gangs as this inventory has them."""
        self.fleet.mean(inventory.nodes)
        return replace(self, inventory=inventory)

    def to_start(self, names: Collection[str], *, replicas: bool) -> Operation:
        """With the gangs of these names (none: all) as a start means them. Raises InputError where one of them runs the
        other way."""
        return self.on(to_start(self.inventory, self.answers, names, replicas=replicas))

    def as_standing(self) -> Operation:
        """With the gangs as they stand: those that were started with --replicas are a gang for each node."""
        return self.on(as_standing(self.inventory, self.answers))

    def asked_again(self) -> Operation:
        """With what the nodes report now."""
        return replace(self, answers=_answers(self.fleet, self.inventory))


@contextmanager
def connected(inventory: Inventory) -> Iterator[Operation]:
    """The one place where a command connects the nodes, and asks what they know of gangs."""
    with Fleet(inventory.nodes, hands_over=True) as fleet:
        yield Operation(inventory=inventory, fleet=fleet, answers=_answers(fleet, inventory))


def _answers(fleet: Fleet, inventory: Inventory) -> PerNode[ReportAnswer]:
    gangs = undecided(inventory) if inventory.router is None else inventory.gangs
    names = [node.name for gang in gangs for node in gang.machines]
    return everything(fleet, names, patience=StragglerWait())


def standing_inventory(inventory: Inventory) -> Inventory:
    """The inventory with its gangs as they stand: those that were started with --replicas are a gang for each node."""
    with connected(replace(inventory, router=None)) as operation:
        return as_standing(inventory, operation.answers)
