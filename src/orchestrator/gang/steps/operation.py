"""What a command begins on several gangs, kept on their nodes until it is finished, whatever becomes of the command."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps.locks import GangLock, user
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError, Unreachable
from orchestrator.model.inventory import Inventory
from orchestrator.remote.fleet import Fleet


@dataclass
class Operation:
    """Between `with`: begun on all of these gangs, whose locks are held; each is finished when its turn is.

    An error that ends it has been reported to the operator: nothing is left to resume, unless a node was lost
    halfway. An interruption leaves everything that is not finished for the next `up` or a guard.
    """

    what: OperationKind
    command: str
    views: Iterable[GangView]
    locks: Iterable[GangLock]
    options: Mapping[str, Any] = field(default_factory=dict)
    _open: dict[str, tuple[GangLock, GangOperation]] = field(default_factory=dict)

    def __enter__(self) -> Operation:
        """Raises LockHeld, and why a node can't keep it."""
        runs = {view.name: view.run_id for view in self.views}
        for lock in self.locks:
            begun = GangOperation(
                gang=lock.gang.name,
                what=self.what,
                was_run=runs.get(lock.gang.name, ""),
                command=self.command,
                who=user(),
                host=socket.gethostname(),
                since=time.time(),
                options=self.options,
            )
            lock.begin(begun)
            self._open[lock.gang.name] = (lock, begun)
        return self

    def turn(self, gangs: Iterable[str]) -> None:
        """The turn of these gangs begins."""
        self._keep(gangs, turning=True)

    def untouched(self, gangs: Iterable[str]) -> None:
        """These gangs are as they were before their turn."""
        self._keep(gangs, turning=False)

    def stopped_by_hand(self, gangs: Iterable[str]) -> None:
        """Their operator has interrupted a maintenance while these gangs were down, and may still work on the nodes."""
        if self.what is OperationKind.MAINTENANCE:
            with suppress(DeployError):
                self._keep(gangs, by_hand=True)

    def finished(self, gangs: Iterable[str]) -> None:
        """These gangs serve again."""
        for name in gangs:
            if name in self._open:
                self._open.pop(name)[0].finish()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, DeployError) and not isinstance(error, Unreachable)):
            self.finished(list(self._open))

    def _keep(self, gangs: Iterable[str], **change: Any) -> None:
        for name in tuple(gangs):
            lock, begun = self._open[name]
            self._open[name] = (lock, replace(begun, **change))
            lock.begin(self._open[name][1])


def kept(request: Any) -> dict[str, Any]:
    """The options of a request, a dataclass: what is needed to go on, without what is chosen then."""
    names = set(request.__dataclass_fields__) - {"verb", "gangs", "command"}
    return {name: getattr(request, name) for name in sorted(names)}


def settle(inventory: Inventory, gangs: Iterable[str], command: str) -> None:
    """Remove the records of what was begun on these gangs: they serve. Skip gangs locked by another command."""
    names = set(gangs)
    for gang in inventory.gangs:
        if gang.name in names:
            with suppress(DeployError), Fleet(gang.nodes) as fleet, GangLock(fleet, gang, command) as lock:
                lock.finish()
