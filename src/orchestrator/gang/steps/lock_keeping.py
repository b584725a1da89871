"""`lock` and `lock --release`: which command holds a gang, by node, and releasing a dead command's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.gang.steps.holder import has_ended
from orchestrator.gang.steps.status.reports import where
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError, LockHeld
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.verbs import LockAnswer, LockHolder, LockRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask_lock
from orchestrator.remote.session import Session

FREE = LockHolder(token="", who="", host="", pid=0, command="")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """One gang's lock on one node. held: by whom, `FREE` by none; stale also where that process on this machine is
    gone: the next command takes it over by itself."""

    gang: str
    node: str
    held: LockHolder = FREE
    error: DeployError | None = None


def locks(inventory: Inventory, gangs: tuple[str, ...] = ()) -> tuple[NodeLock, ...]:
    """Every lock on every node of the chosen gangs."""
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(lock for gang in chosen for lock in _look(fleet, gang))


def release(inventory: Inventory, gangs: tuple[str, ...] = (), *, force: bool = False) -> tuple[NodeLock, ...]:
    """Give back stale locks, with `force` every lock; returns those that were given back and the nodes not asked.

    Raises LockHeld if a live command holds one, before anything is given back.
    """
    chosen = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        found = [lock for gang in chosen for lock in _look(fleet, gang)]
        for lock in found:
            if lock.held.token and not (lock.held.stale or force):
                raise LockHeld(
                    f"{lock.held.name} holds gang {lock.gang} with `{lock.held.command}`, last heartbeat"
                    f" {lock.held.age_s:.0f} s ago",
                    where=lock.node,
                    fix="wait for it, or stop it. Use --force only if you are sure that it is not running",
                )
        return tuple(_give_back(fleet, lock) for lock in found if lock.held.token or lock.error)


def locks_json(found: Sequence[NodeLock]) -> dict[str, Any]:
    """The document of `lock --json`."""
    return {
        "locks": [
            {
                "gang": lock.gang,
                "node": lock.node,
                "held": bool(lock.held.token),
                "who": lock.held.who,
                "host": lock.held.host,
                "pid": lock.held.pid,
                "command": lock.held.command,
                "age_s": round(lock.held.age_s, 1),
                "stale": lock.held.stale,
                "error": lock.error.what if lock.error else None,
            }
            for lock in found
        ]
    }


def _look(fleet: Fleet, gang: GangSpec) -> list[NodeLock]:
    names = [node.name for node in gang.nodes]
    answers = fleet.on_every(
        lambda session: ask_lock(session, LockRequest(**where(session.spec, gang.name), op="show")),
        only=names,
    )
    return [
        NodeLock(gang=gang.name, node=name, error=answers.failures[name])
        if name in answers.failures
        else NodeLock(gang=gang.name, node=name, held=_shown(answers.values[name].held))
        for name in names
    ]


def _shown(held: LockHolder | None) -> LockHolder:
    if held is None:
        return FREE
    return replace(
        held,
        who=held.who or "unknown",
        host=held.host or "unknown",
        pid=held.pid or 0,
        command=held.command or "a lock file that can't be read",
        stale=held.stale or has_ended(held),
    )


def _give_back(fleet: Fleet, lock: NodeLock) -> NodeLock:
    """By its token: a lock that another command has taken meanwhile stays."""
    if lock.error is not None:
        return lock

    def one(session: Session) -> LockAnswer:
        return ask_lock(session, LockRequest(**where(session.spec, lock.gang), op="release", token=lock.held.token))

    fleet.on_every(one, only=[lock.node]).all()
    return lock
