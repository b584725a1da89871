"""What a command begins on several gangs, kept on their nodes until it is finished, whatever becomes of the command."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from orchestrator.gang.begun import Begun, What, read, together
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError, Unreachable
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.verbs import LockAnswer, LockHolder, LockRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.workflows.asking import ask_lock
from orchestrator.workflows.gang.holder import has_ended
from orchestrator.workflows.gang.locks import GangLock, user
from orchestrator.workflows.status.reports import where


@dataclass
class Operation:
    """Between `with`: begun on all of these gangs, whose locks are held; each is finished when its turn is.

    An error that ends it has been reported to the operator: nothing is left to resume, unless a node was lost
    halfway. An interruption leaves everything that is not finished for `restart --resume`, the next `up` or a guard.
    """

    what: What
    command: str
    views: Iterable[GangView]
    locks: Iterable[GangLock]
    options: Mapping[str, Any] = field(default_factory=dict)
    _open: dict[str, tuple[GangLock, Begun]] = field(default_factory=dict)

    def __enter__(self) -> Operation:
        """Raises LockHeld, and why a node can't keep it."""
        runs = {view.name: view.run_id for view in self.views}
        for lock in self.locks:
            begun = Begun(
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
        if self.what is What.MAINTENANCE:
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


def interrupted(fleet: Fleet, gangs: Iterable[GangSpec], *, only: Collection[str] | None = None) -> tuple[Begun, ...]:
    """What was begun on these gangs and no command works on any more. only: names of the nodes to ask."""
    return tuple(begun for begun, held in _kept(fleet, tuple(gangs), only) if not any(map(_at_work, held)))


def begun_on(fleet: Fleet, gangs: Iterable[GangSpec]) -> tuple[str, ...]:
    """Names of the gangs with unfinished work, whichever command holds them."""
    return tuple(begun.gang for begun, _ in _kept(fleet, tuple(gangs), None))


def settle(inventory: Inventory, gangs: Iterable[str], command: str) -> None:
    """Remove the records of what was begun on these gangs: they serve. Skip gangs locked by another command."""
    names = set(gangs)
    for gang in inventory.gangs:
        if gang.name in names:
            with suppress(DeployError), Fleet(gang.nodes) as fleet, GangLock(fleet, gang, command) as lock:
                lock.finish()


def _kept(
    fleet: Fleet, gangs: Sequence[GangSpec], only: Collection[str] | None
) -> Iterator[tuple[Begun, Sequence[LockHolder | None]]]:
    """The nodes' records of each gang, and who holds its lock there. If a node does not answer, the records of the
    other nodes count."""
    names = [node.name for gang in gangs for node in gang.nodes if only is None or node.name in only]
    gang_of = {node.name: gang.name for gang in gangs for node in gang.nodes}

    def one(session: Session) -> LockAnswer:
        return ask_lock(session, LockRequest(**where(session.spec, gang_of[session.spec.name]), op="show"))

    answers = fleet.on_every(one, only=names).values
    for gang in gangs:
        kept = [answers[node.name] for node in gang.nodes if node.name in answers]
        begun = together(read(answer.begun) for answer in kept)
        if begun is not None:
            yield begun, [answer.held for answer in kept]


def _at_work(held: LockHolder | None) -> bool:
    """A lock shows that a command works on the gang, unless it is no longer renewed, or its process on this machine is
    gone."""
    return held is not None and not held.stale and not has_ended(held)
