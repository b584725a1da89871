"""Prevents conflicts between operators: a command that changes a gang holds a lock on each of its nodes.

`lock` and `lock --release` show by node who holds a gang, and release a dead command's lock.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType, TracebackType
from typing import Any

from orchestrator.gang.operations import GangOperation
from orchestrator.gang.steps.status.reports import has_ended, request_keys, shown_locks, this_process
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.words import one_line
from orchestrator.node.os_errors import NO_ROOM_KINDS
from orchestrator.node.viewers import NOT_OURS
from orchestrator.protocol.errors import DeployError, LockHeld
from orchestrator.protocol.verbs import LockAnswer, LockHolder, LockRequest
from orchestrator.records import documents
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask_lock
from orchestrator.remote.session import Session

RENEW_EVERY_S = 10.0
OLD_RENEWALS = 1.5
"""So many times RENEW_EVERY_S after the last answer we may have been stopped or cut off, and must ask again."""
MOST_ENDED = 400
"""Characters that a node keeps of the error that ended a command."""
_held: list[GangLock] = []
"""By this process, now."""


def _held_on(fleet: Fleet, *names: str) -> list[GangLock]:
    """The locks on gangs of these names that were taken over this fleet."""
    return [lock for lock in tuple(_held) if lock.fleet is fleet and lock.gang.name in names]


def still_ours(fleet: Fleet, gangs: Iterable[GangSpec]) -> None:
    """Before a step that can't be taken back. Raises LockHeld where the lock on one of these gangs was lost; a gang
    whose lock was never taken here is its caller's business."""
    for lock in _held_on(fleet, *(gang.name for gang in gangs)):
        lock.still_ours()


def take_again(fleet: Fleet, gang: GangSpec) -> None:
    """After the gang's nodes were booted, some perhaps with empty disks. Raises LockHeld where somebody else has the
    lock by now."""
    for lock in _held_on(fleet, gang.name):
        lock.take_again()


def fence(fleet: Fleet, gang: str, node: str = "") -> str:
    """The token of a request that changes a gang: a node refuses it once another one has taken the lock over. '' where
    this process holds no lock on the gang; on this node, where the node's disk took none and nobody held it.
    """
    return next((lock.token for lock in _held_on(fleet, gang) if node not in lock.full), "")


@dataclass(eq=False)
class GangLock:
    """The lock on one gang, held between `with`. With `partial`, unreachable nodes are no obstacle.

    why:    for the audit log, where the command does not say it all
    full:   with `partial`: nodes without room for it on their disk
    _taken: the nodes where we got it: all, or with `partial` all that could be reached
    _lost:  the answers of the nodes on which another command has it, by name
    """

    fleet: Fleet
    gang: GangSpec
    command: str
    partial: bool = False
    force: bool = False
    why: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    full: Collection[str] = ()
    _nodes: Collection[str] = ()
    _taken: Collection[str] = ()
    _lost: Mapping[str, LockAnswer] = field(default_factory=dict)
    _renewed_at: float = 0.0
    _given_back: threading.Event = field(default_factory=threading.Event)

    @property
    def renew_every_s(self) -> float:
        """Seconds between two heartbeats."""
        return RENEW_EVERY_S

    def __enter__(self) -> GangLock:
        """Raises LockHeld, and where not `partial` Unreachable; nothing is locked then."""
        self._nodes = [node.name for node in self.gang.nodes]
        try:
            self._acquire()
            threading.Thread(target=self._keep, daemon=True).start()
        except BaseException:
            self.release()
            raise
        _held.append(self)
        self._note("begins")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = "" if error is None else _reason(error)
        self.release(ended)
        self._note(f"ends: {ended}" if ended else "ends")

    def _note(self, what: str) -> None:
        documents.note(what, gang=self.gang.name, holder=self._holder().as_json(), why=self.why)

    def _acquire(self) -> None:
        answers = self._ask(op="acquire", holder=self._holder())
        if held := _not_mine(answers):
            over = {node: self._dead_token(answer.held) for node, answer in held.items()}
            answers = self._ask(op="acquire", holder=self._holder(), over=over)
            held = _not_mine(answers)
        if held:
            raise self._held(held)
        ours = [failure for failure in answers.failures.values() if getattr(failure, "kind", "") != NOT_OURS]
        if not self.partial or (answers.failures and not answers.values and not ours):
            answers.all()  # who may only look stops nothing, and takes nothing out of the router
        self.full = [
            name for name, failure in answers.failures.items() if getattr(failure, "kind", "") in NO_ROOM_KINDS
        ]
        self._taken, self._renewed_at = tuple(answers.values), time.time()

    def _keep(self) -> None:
        """Say that we are still at work, whatever the work waits for; without that the lock goes stale after 60 s.

        Over connections apart: a renewal that runs into its deadline must not take down the one that works.
        """
        while not self._given_back.wait(self.renew_every_s):
            self._renew(self.fleet.apart)

    def _renew(self, fleet: Fleet) -> None:
        """A node that can't be asked has not given the lock away, and no defect in one renewal may end the next."""
        try:
            answers = self._ask(fleet, op="renew", token=self.token, patience=StragglerWait())
            lost = {node: answer for node, answer in _not_mine(answers).items() if node in self._taken}
        except Exception as defect:
            self._note(f"could not be renewed: {type(defect).__name__}: {defect}")
            return
        self._lost = self._lost or lost
        if answers.values:  # whoever takes it over needs every node
            self._renewed_at = time.time()

    def still_ours(self) -> None:
        """Raises LockHeld if another command took it over (we had shown no sign of life for 60 s) or released it."""
        if abs(time.time() - self._renewed_at) > OLD_RENEWALS * self.renew_every_s:
            self._renew(self.fleet)
        if self._lost:
            raise self._lost_to(self._lost)

    def take_again(self) -> None:
        """Acquire it again if it is free. Raises LockHeld if it is not."""
        self._acquire()
        self._lost = {}

    def begin(self, begun: GangOperation) -> None:
        """Have every node keep what is being done. Raises LockHeld, and why a node can't."""
        answers = self._ask(op="begin", token=self.token, begun=begun.as_json())
        if lost := _not_mine(answers):
            raise self._lost_to(lost)
        answers.all()

    def finish(self) -> None:
        """Have every node that can be reached forget it."""
        self._ask(op="finish", token=self.token, patience=StragglerWait())

    def release(self, ended: str = "") -> None:
        """Give it back on every node that can be reached; elsewhere it goes stale. ended: the error that ended us."""
        self._given_back.set()
        if self in _held:
            _held.remove(self)
        with contextlib.suppress(KeyboardInterrupt):
            self._ask(op="release", token=self.token, ended=one_line(ended, MOST_ENDED), patience=StragglerWait())

    def _dead_token(self, holder: LockHolder | None) -> str:
        """Of a holder that was on this machine and is gone, or of anybody with `force`."""
        return holder.token if holder is not None and (self.force or has_ended(holder)) else ""

    def _ask(
        self,
        fleet: Fleet | None = None,
        *,
        patience: StragglerWait | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
        **keys: Any,
    ) -> PerNode[LockAnswer]:
        """over: by node, the token of the holder that is taken over there."""

        def one(session: Session) -> LockAnswer:
            spec, token = session.spec, over.get(session.spec.name, "")
            place = request_keys(spec, self.gang.name)
            return ask_lock(session, LockRequest(node=spec.name, over=token, **place, **keys))

        return (fleet or self.fleet).on_every(one, only=self._nodes, patience=patience)

    def _holder(self) -> LockHolder:
        return LockHolder(
            token=self.token, who=user(), **this_process(), command=self.command, since=time.time(), why=self.why
        )

    def _held(self, held: Mapping[str, LockAnswer]) -> LockHeld:
        node, answer = next(iter(held.items()))
        holder = answer.held or LockHolder(token="")
        if not holder.who:
            return LockHeld(
                f"the lock file of gang {self.gang.name} can't be read (a full disk, or a power cut?); it was touched "
                f"{holder.age_s:.0f} s ago",
                where=node,
                fix=f"repeat the command after a minute, or now: l40s-deploy lock --release --force {self.gang.name}",
            )
        fix = "wait for it, or stop it. A lock without a heartbeat for 60 s is taken over automatically"
        return _held_by(holder, self.gang.name, node, fix)

    def _lost_to(self, lost: Mapping[str, LockAnswer]) -> LockHeld:
        node, held = next((node, answer.held) for node, answer in lost.items())
        free = "no command holds it now; it was taken over or released by force"
        now = free if held is None else f"{held.name} holds it with `{held.command}`"
        return LockHeld(
            f"the lock on gang {self.gang.name} was lost: {now}; nothing more was done",
            where=node,
            fix="wait for the other command. Check `l40s-deploy status`, then run this command again",
        )


def _not_mine(answers: PerNode[LockAnswer]) -> dict[str, LockAnswer]:
    return {node: answer for node, answer in answers.values.items() if not answer.mine}


def user() -> str:
    """Who types, for locks and the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


FREE = LockHolder(token="", who="", host="", pid=0, command="")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """One gang's lock on one node. held: by whom, `FREE` by none; stale also where that process on this machine is
    gone: the next command takes it over by itself."""

    gang: str
    node: str
    held: LockHolder = FREE
    error: DeployError | None = None


def locks(fleet: Fleet, gangs: Sequence[GangSpec]) -> tuple[NodeLock, ...]:
    """Every lock on every node of these gangs."""
    shown = shown_locks(fleet, gangs)
    return tuple(
        NodeLock(
            gang=gang.name,
            node=node.name,
            held=_shown(shown.values[node.name].held) if node.name in shown.values else FREE,
            error=shown.failures.get(node.name),
        )
        for gang in gangs
        for node in gang.nodes
    )


def release(fleet: Fleet, gangs: Sequence[GangSpec], *, force: bool = False) -> tuple[NodeLock, ...]:
    """Give back stale locks, with `force` every lock; returns those that were given back and the nodes not asked.

    Raises LockHeld if a live command holds one, before anything is given back.
    """
    shown = locks(fleet, gangs)
    for lock in shown:
        if lock.held.token and not (lock.held.stale or force):
            fix = "wait for it, or stop it. Use --force only if you are sure that it is not running"
            raise _held_by(lock.held, lock.gang, lock.node, fix)
    taken = {lock.node: lock for lock in shown if lock.held.token}

    def one(session: Session) -> LockAnswer:  # by its token: a lock that another command has taken meanwhile stays
        lock = taken[session.spec.name]
        keys = request_keys(session.spec, lock.gang)
        return ask_lock(session, LockRequest(**keys, op="release", token=lock.held.token))

    fleet.on_every(one, only=list(taken)).all()
    return tuple(lock for lock in shown if lock.held.token or lock.error)


def _reason(error: BaseException) -> str:
    """Why a command ended, for who reads that later: a defect with its kind."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, DeployError) else f"{type(error).__name__}: {error}"


def _held_by(holder: LockHolder, gang: str, node: str, fix: str) -> LockHeld:
    words = f"{holder.name} holds gang {gang} with `{holder.command}`, last heartbeat {holder.age_s:.0f} s ago"
    return LockHeld(words, where=node, fix=fix)


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
