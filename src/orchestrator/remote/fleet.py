"""Many nodes at once: connections are opened side by side, kept, reopened when lost, left to the next fleet."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from orchestrator.model.deadlines import LOGIN_GLANCE_S
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.lacks import lack_of
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.remote.allowance import allowance
from orchestrator.remote.deadline import beside
from orchestrator.remote.local import connect
from orchestrator.remote.session import Connection, Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StragglerWait:
    """For a glance: who has not answered when the others did is waited for a little longer, not for its own deadline.

    least_s: so long at least; times: so many times as long as the slowest of the others took, on a busy machine;
    login_s: so long for a login that has not come to its end, which is no word on the node behind it
    """

    least_s: float = 2.5
    times: float = 2.0
    login_s: float = LOGIN_GLANCE_S

    def wait(
        self,
        jobs: Sequence[Callable[[], object]],
        answered: Callable[[], int],
        logging_in: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the jobs in threads of their own, and wait.

        answered: how many of them have succeeded; logging_in: whether one waits for a login's end
        """
        ended: queue.SimpleQueue[float] = queue.SimpleQueue()
        began = time.monotonic()
        for job in jobs:
            beside(partial(_noting, job, ended))
        until: float | None = None
        for _ in jobs:
            at = _taken(ended, until)
            while at is None and logging_in() and time.monotonic() < began + self.login_s:
                at = _taken(ended, time.monotonic() + _LOOK_S)
            if at is None:
                return
            if answered():
                until = began + max(self.least_s, self.times * (at - began))


_LOOK_S = 0.1


def _taken(ended: queue.SimpleQueue[float], until: float | None) -> float | None:
    """The next one's time; None where it does not come until then."""
    try:
        return ended.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
    except queue.Empty:
        return None


@dataclass
class _Outcomes(Generic[T]):
    """What became of a work, by node; defects are our own."""

    values: dict[str, T] = field(default_factory=dict)
    failures: dict[str, DeployError] = field(default_factory=dict)
    defects: list[BaseException] = field(default_factory=list)


class Fleet:
    """Sessions to a set of nodes, each opened at its first use. A context manager; safe to use from threads.

    hands_over: the next fleet of the process takes the idle ones, where it wants the same nodes at once
    asks_lost:  whether a node that could not be reached is tried again at the next question; a command that only
                looks does not, so that it waits once for a node that answers too slowly
    """

    def __init__(
        self,
        nodes: Iterable[NodeSpec],
        *,
        connect_deadline_s: float = 10.0,
        hands_over: bool = False,
        asks_lost: bool = True,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._connect_deadline_s = connect_deadline_s
        self._open: dict[str, Connection] = {}
        self._opening = {name: threading.Lock() for name in self.nodes}
        self._failed: dict[str, DeployError] = {}
        """Why the last try to connect failed, by node."""
        self._closed = False
        self._hands_over = hands_over
        self._asks_lost = asks_lost
        self._allowance = allowance()
        self._lost: dict[str, Unreachable] = {}
        self._busy: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._apart: Fleet | None = None

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def mean(self, nodes: Iterable[NodeSpec]) -> None:
        """From the next question on, ask the same machines by these words of theirs: their gangs may be others now."""
        now = {node.name: node for node in nodes}
        assert now.keys() <= self.nodes.keys(), "another fleet is wanted for other machines"
        self.nodes = now
        if self._apart is not None:
            self._apart.mean(now.values())

    @property
    def apart(self) -> Fleet:
        """The same nodes over connections of their own, which end with these: for what goes on beside the work, and
        must not take down its connections where it runs into a deadline."""
        with self._counting:
            if self._apart is None:
                self._apart = Fleet(self.nodes.values(), connect_deadline_s=self._connect_deadline_s)
                self._apart._allowance = self._allowance
            return self._apart

    def on_every(
        self,
        work: Callable[[Session], T],
        *,
        only: Collection[str] | None = None,
        patience: StragglerWait | None = None,
    ) -> PerNode[T]:
        """Do work on all nodes (or only those named) at the same time, one thread a node.

        A DeployError becomes that node's failure; a session that it shows to be lost is opened again at the next
        call. Any other exception is our defect and is raised, once every node has ended.
        patience: with those that the others have left behind; None waits for every node's own deadline.
        """
        names = [name for name in self.nodes if only is None or name in only]
        outcomes: _Outcomes[T] = _Outcomes()
        jobs = [partial(self._work_on, name, work, outcomes) for name in names]
        if patience is None:
            _side_by_side(jobs)
        else:
            patience.wait(jobs, lambda: len(outcomes.values), lambda: any(self._logs_in(name) for name in names))
        if outcomes.defects:
            raise outcomes.defects[0]
        ended = PerNode(values=outcomes.values, failures=outcomes.failures).ordered(names)
        late = [name for name in names if name not in ended.values and name not in ended.failures]
        left_behind = {name: self._left_behind(name) for name in late}
        return PerNode(values=ended.values, failures={**ended.failures, **left_behind})

    def _work_on(self, name: str, work: Callable[[Session], T], outcomes: _Outcomes[T]) -> None:
        """One node's part, in a thread of its own."""
        self._count(name, 1)
        try:
            with self._allowance.counted(name):
                outcomes.values[name] = work(self._session(name))
        except Unreachable as failure:
            self._drop(name)
            self._lost[name] = outcomes.failures[name] = failure
        except DeployError as failure:
            outcomes.failures[name] = failure
        except BaseException as defect:
            if (lack := lack_of(defect)) is None:
                outcomes.defects.append(defect)
            else:
                outcomes.failures[name] = lack.at(f"{name}: {lack.where}")
        finally:
            self._count(name, -1)

    def close(self) -> None:
        """Close every session, or leave it to the next fleet; work that still runs on one ends with Unreachable."""
        with self._counting:
            self._closed = True
            idle = [name for name in self._open if self._hands_over and not self._busy[name]]
            apart = self._apart
        if apart is not None:
            apart.close()
        leave([self._open.pop(name) for name in idle])
        _side_by_side([session.close for session in list(self._open.values())])
        self._open.clear()

    def let_go(self) -> None:
        """Close what is open, before a long wait; who asks a node afterwards connects it anew."""
        for name in list(self._open):
            self._drop(name)
        if self._apart is not None:
            self._apart.let_go()

    def _count(self, name: str, more: int) -> None:
        with self._counting:
            self._busy[name] += more

    def _session(self, name: str) -> Session:
        if not self._asks_lost and (lost := self._lost.get(name)) is not None:
            raise Unreachable(lost.what, where=lost.where, fix=lost.fix)
        before = self._failed.get(name)
        with self._opening[name]:
            session = self._open.get(name)
            if session is not None and session.alive:
                session.spec = self.nodes[name]
                return session
            self._expect_open(name)
            failed = self._failed.get(name)
            if failed is not None and failed is not before:  # a try while this one waited counts for both
                raise type(failed)(failed.what, where=failed.where, fix=failed.fix)
            try:
                session = take(self.nodes[name]) or connect(self.nodes[name], self._connect_deadline_s)
            except DeployError as failure:
                self._failed[name] = failure
                raise
            session.spec = self.nodes[name]
            self._open[name] = session
            self._expect_open(name)  # nobody waited for it, perhaps
            return session

    def _logs_in(self, name: str) -> bool:
        session = self._open.get(name)
        return session is not None and session.logging_in

    def _left_behind(self, name: str) -> Unreachable:
        what, fix = "no answer while the others answered", f"check that it responds: ssh {name} uptime"
        if self._logs_in(name):
            what = "its login takes longer than all that the others did, so it was not asked"
            fix = f"see what that user's start-up files do or wait for (~/.bashrc, PAM): ssh {name} true"
        return Unreachable(what, where=name, fix=fix)

    def _expect_open(self, name: str) -> None:
        if self._closed:
            self._drop(name)
            raise Unreachable("the connections are closed", where=name, fix="this command was stopping")

    def _drop(self, name: str) -> None:
        if (session := self._open.pop(name, None)) is not None:
            session.close()


def _noting(job: Callable[[], object], ended: queue.SimpleQueue[float]) -> None:
    try:
        job()
    finally:
        ended.put(time.monotonic())


def _side_by_side(jobs: Sequence[Callable[[], object]]) -> None:
    """Run all jobs in threads of their own and wait; daemon threads, so that Ctrl-C ends the process at once."""
    if len(jobs) == 1:
        jobs[0]()
        return
    threads = [beside(job) for job in jobs]
    for thread in threads:
        if thread is not None:
            thread.join()


KEPT_S = 2.0
"""An idle connection older than this may have lost its node: a new one says so in better words, and sooner."""

_left: dict[str, tuple[Connection, float]] = {}
_lock = threading.Lock()


def leave(connections: Sequence[Connection]) -> None:
    """Keep idle connections for the next caller that needs those nodes, for a moment: a command may run for days."""
    if not connections:
        return
    with _lock:
        before = [_left.pop(connection.spec.name)[0] for connection in connections if connection.spec.name in _left]
        _left.update({connection.spec.name: (connection, time.monotonic()) for connection in connections})
    _close(before)
    later = threading.Timer(KEPT_S, _sweep)
    later.daemon = True
    later.start()


def take(spec: NodeSpec) -> Connection | None:
    """The connection to that node, as a session of this spec; None where there is none, or none to be trusted."""
    with _lock:
        connection, since = _left.pop(spec.name, (None, 0.0))
    if connection is None:
        return None
    if connection.spec.reach == spec.reach and connection.alive and time.monotonic() - since <= KEPT_S:
        connection.spec = spec
        return connection
    connection.close()
    return None


def _sweep() -> None:
    with _lock:
        old = [name for name, (_, since) in _left.items() if time.monotonic() - since >= KEPT_S]
        unused = [_left.pop(name)[0] for name in old]
    _close(unused)


@atexit.register
def _close_all() -> None:
    _close([connection for connection, _ in _left.values()])
    _left.clear()


def _close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        with contextlib.suppress(DeployError, OSError):
            connection.close()
