"""What commands have begun on gangs and not finished, as the nodes remember it; whether a lock's holder still runs.

A host's name says too little of a holder: containers on a host's network share it, and so do cloned machines. A process
is known by the boot of its machine, its PID namespace, its id there and its start time (proc(5), pid_namespaces(7)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.gang.operations import GangOperation, together
from orchestrator.gang.steps.status.reports import where
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import PerNode
from orchestrator.node import processes
from orchestrator.protocol.verbs import LockAnswer, LockHolder, LockRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_lock
from orchestrator.remote.session import Session


def interrupted(
    fleet: Fleet, gangs: Sequence[GangSpec], *, only: Collection[str] | None = None
) -> tuple[GangOperation, ...]:
    """What was begun on these gangs and no command works on any more. only: names of the nodes to ask."""
    return tuple(begun for begun, kept in _begun(fleet, gangs, only) if not any(_at_work(one.held) for one in kept))


def begun_on(fleet: Fleet, gangs: Sequence[GangSpec]) -> tuple[GangOperation, ...]:
    """Unfinished work on these gangs, whichever command holds them."""
    return tuple(begun for begun, _ in _begun(fleet, gangs, None))


def _begun(
    fleet: Fleet, gangs: Sequence[GangSpec], only: Collection[str] | None
) -> Iterator[tuple[GangOperation, Sequence[LockAnswer]]]:
    """With what each node says of the gang's lock. If a node does not answer, the records of the others count."""
    answers = shown_locks(fleet, gangs, only).values
    for gang in gangs:
        kept = [answers[node.name] for node in gang.nodes if node.name in answers]
        if begun := together(answer.begun for answer in kept):
            yield begun, kept


def shown_locks(fleet: Fleet, gangs: Iterable[GangSpec], only: Collection[str] | None = None) -> PerNode[LockAnswer]:
    """Who holds these gangs' locks, and what was begun on them."""
    gang_of = {node.name: gang.name for gang in gangs for node in gang.nodes if only is None or node.name in only}

    def one(session: Session) -> LockAnswer:
        return ask_lock(session, LockRequest(**where(session.spec, gang_of[session.spec.name]), op="show"))

    return fleet.on_every(one, only=list(gang_of))


def _at_work(held: LockHolder | None) -> bool:
    """A lock shows that a command works on the gang, unless it is no longer renewed, or its process on this machine is
    gone."""
    return held is not None and not held.stale and not has_ended(held)


def this_process() -> dict[str, Any]:
    """The keys of a lock that name us; '' and 0 where this system does not tell."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": processes.start_of(os.getpid()),
        "boot": processes.boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def has_ended(holder: LockHolder) -> bool:
    """True if this process can see that the holder has ended; False if it runs, or can't be seen from here."""
    ours, theirs = this_process(), {"boot": holder.boot, "pid_namespace": holder.pid_namespace}
    if holder.pid is None or holder.start is None or any(not ours[key] or ours[key] != theirs[key] for key in theirs):
        return False
    return not processes.alive(holder.pid, holder.start)


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
