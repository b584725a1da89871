"""Many nodes at once: connections are opened side by side, kept, reopened when lost, closed together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import TypeVar

from orchestrator.model.errors import DeployError, Unreachable
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.remote.connect import connect
from orchestrator.remote.session import Connection, Session

T = TypeVar("T")


class Fleet:
    """Sessions to a set of nodes, each opened at its first use. A context manager; safe to use from threads."""

    def __init__(self, nodes: Iterable[NodeSpec], *, connect_deadline_s: float = 10.0) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._connect_deadline_s = connect_deadline_s
        self._open: dict[str, Connection] = {}
        self._opening = {name: threading.Lock() for name in self.nodes}
        self._closed = False

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def on_every(self, work: Callable[[Session], T], *, only: Collection[str] | None = None) -> PerNode[T]:
        """Do work on all nodes (or only those named) at the same time, one thread a node.

        A DeployError becomes that node's failure; a session that it shows to be lost is opened anew at the next
        call. Any other exception is our defect and is raised, once every node has ended.
        """
        names = [name for name in self.nodes if only is None or name in only]
        values: dict[str, T] = {}
        failures: dict[str, DeployError] = {}
        defects: list[BaseException] = []

        def one(name: str) -> None:
            try:
                values[name] = work(self._session(name))
            except Unreachable as failure:
                self._drop(name)
                failures[name] = failure
            except DeployError as failure:
                failures[name] = failure
            except BaseException as defect:
                defects.append(defect)

        _side_by_side([lambda name=name: one(name) for name in names])  # type: ignore[misc]
        if defects:
            raise defects[0]
        return PerNode(
            values={name: values[name] for name in names if name in values},
            failures={name: failures[name] for name in names if name in failures},
        )

    def close(self) -> None:
        """Close every session; work that still runs on one ends with Unreachable."""
        self._closed = True
        _side_by_side([session.close for session in list(self._open.values())])
        self._open.clear()

    def _session(self, name: str) -> Session:
        with self._opening[name]:
            session = self._open.get(name)
            if session is not None and session.alive:
                return session
            if self._closed:
                raise Unreachable("the connections are closed", where=name, fix="this command was ending")
            session = connect(self.nodes[name], deadline_s=self._connect_deadline_s)
            self._open[name] = session
            return session

    def _drop(self, name: str) -> None:
        session = self._open.pop(name, None)
        if session is not None:
            session.close()


def _side_by_side(jobs: list[Callable[[], object]]) -> None:
    """Run all jobs in threads of their own and wait; daemon threads, so that Ctrl-C ends the process at once."""
    if len(jobs) == 1:
        jobs[0]()
        return
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
