"""What commands have begun on gangs and not finished, as the gangs' nodes remember it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from orchestrator.gang.operations import GangOperation, read, together
from orchestrator.gang.steps.holder import has_ended
from orchestrator.gang.steps.status.reports import where
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.verbs import LockAnswer, LockHolder, LockRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_lock
from orchestrator.remote.session import Session


def interrupted(
    fleet: Fleet, gangs: Iterable[GangSpec], *, only: Collection[str] | None = None
) -> tuple[GangOperation, ...]:
    """What was begun on these gangs and no command works on any more. only: names of the nodes to ask."""
    return tuple(begun for begun, held in _kept(fleet, tuple(gangs), only) if not any(map(_at_work, held)))


def begun_on(fleet: Fleet, gangs: Iterable[GangSpec]) -> tuple[GangOperation, ...]:
    """Unfinished work on these gangs, whichever command holds them."""
    return tuple(begun for begun, _ in _kept(fleet, tuple(gangs), None))


def _kept(
    fleet: Fleet, gangs: Sequence[GangSpec], only: Collection[str] | None
) -> Iterator[tuple[GangOperation, Sequence[LockHolder | None]]]:
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
