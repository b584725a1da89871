"""`lock` and `lock --release`: which command holds a gang, by node, and releasing a dead command's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.gang.steps.holder import has_ended
from orchestrator.gang.steps.status.reports import where
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError, LockHeld
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.verbs import LockAnswer, LockHolder, LockRequest
from orchestrator.remote.asking import ask_lock
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """One gang's lock on one node. token '' means that it is free.

    age_s: since the holder's last sign of life, by the node's clock
    stale: too old to count, or its process on this machine is gone: the next command takes it over by itself
    """

    gang: str
    node: str
    token: str = ""
    who: str = ""
    host: str = ""
    pid: int = 0
    command: str = ""
    age_s: float = 0.0
    stale: bool = False
    error: DeployError | None = None

    @property
    def holder(self) -> str:
        """'ops@desk (pid 4711)'."""
        return LockHolder(token=self.token, who=self.who, host=self.host, pid=self.pid).name


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
            if lock.token and not (lock.stale or force):
                raise LockHeld(
                    f"{lock.holder} holds gang {lock.gang} with `{lock.command}`, last heartbeat {lock.age_s:.0f} s"
                    " ago",
                    where=lock.node,
                    fix="wait for it, or stop it. Use --force only if you are sure that it is not running",
                )
        return tuple(_give_back(fleet, lock) for lock in found if lock.token or lock.error)


def locks_json(found: Sequence[NodeLock]) -> dict[str, Any]:
    """The document of `lock --json`."""
    return {
        "locks": [
            {
                "gang": lock.gang,
                "node": lock.node,
                "held": bool(lock.token),
                "who": lock.who,
                "host": lock.host,
                "pid": lock.pid,
                "command": lock.command,
                "age_s": round(lock.age_s, 1),
                "stale": lock.stale,
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
        else _lock(gang.name, name, answers.values[name].held)
        for name in names
    ]


def _lock(gang: str, node: str, held: LockHolder | None) -> NodeLock:
    if held is None:
        return NodeLock(gang=gang, node=node)
    return NodeLock(
        gang=gang,
        node=node,
        token=held.token,
        who=held.who or "unknown",
        host=held.host or "unknown",
        pid=held.pid or 0,
        command=held.command or "a lock file that can't be read",
        age_s=held.age_s,
        stale=held.stale or has_ended(held),
    )


def _give_back(fleet: Fleet, lock: NodeLock) -> NodeLock:
    """By its token: a lock that another command has taken meanwhile stays."""
    if lock.error is not None:
        return lock

    def one(session: Session) -> LockAnswer:
        return ask_lock(session, LockRequest(**where(session.spec, lock.gang), op="release", token=lock.token))

    fleet.on_every(one, only=[lock.node]).all()
    return lock
