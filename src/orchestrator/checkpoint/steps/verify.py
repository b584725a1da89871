"""`checkpoint verify`: every node reads its copy, and the digests are compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from queue import Empty, Queue

from orchestrator.checkpoint.copies import FileDifference, differences
from orchestrator.checkpoint.steps.push import chosen
from orchestrator.checkpoint.steps.same_roots import same_roots
from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.model.deadlines import SILENT_S
from orchestrator.model.errors import DeployError, NodeError, Unreachable, VerificationDiffers
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.jobs import DigestsLine, DigestsRequest
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal
from orchestrator.remote.session import Session

_ABSENT = ("no-checkpoint", "unfinished")
"""A node's refusals that mean that it has no complete copy: a result, not an error."""

Report = Callable[[str, int, int], None]
"""Told node, bytes read and bytes there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What was compared. copies: SHA-256 by path of nodes with a complete copy; shared: node -> directory's owner"""

    directories: Mapping[str, str]
    copies: PerNode[Mapping[str, str]]
    shared: Mapping[str, str]
    differences: tuple[FileDifference, ...]
    seconds: float

    @property
    def same(self) -> bool:
        return not self.differences and not self.copies.failures


def verify(inventory: Inventory, what: str, *, to: Sequence[str], fresh: bool, report: Report) -> VerifyResult:
    """Compare the copies of one checkpoint. A node without a complete copy is a failure beside the others' digests.

    what:  an absolute path, the same on all nodes; or a model or directory below each node's model root
    fresh: read everything, whatever digests are remembered
    """
    began = time.monotonic()
    specs = chosen(inventory, to, "--node")
    directories = {name: _directory(spec, what) for name, spec in specs.items()}
    with Fleet(specs.values()) as fleet:
        shared = _shared(fleet, directories)

        def read(session: Session) -> Mapping[str, str]:
            return _digests(session, directories[session.spec.name], fresh=fresh, report=report)

        copies = fleet.on_every(read, only={name for name in directories if name not in shared})
    failures = {name: _judged(failure) for name, failure in copies.failures.items()}
    return VerifyResult(
        directories=directories,
        copies=PerNode(values=copies.values, failures=failures),
        shared=shared,
        differences=differences(copies.values),
        seconds=time.monotonic() - began,
    )


def _directory(spec: NodeSpec, what: str) -> str:
    if what.startswith("/"):
        return str(PurePosixPath(what))
    name = load_profile(what).directory if what in profile_names() else what
    return str(PurePosixPath(spec.model_root, name))


def _shared(fleet: Fleet, directories: Mapping[str, str]) -> dict[str, str]:
    """Nodes whose copy is another one's."""
    if len(directories) < 2:
        return {}
    parents = {name: str(PurePosixPath(directory).parent) for name, directory in directories.items()}
    child = next(PurePosixPath(directory).name for directory in directories.values())
    return {name: owner for name, owner in same_roots(fleet, parents, child).items() if owner != name}


def _digests(session: Session, directory: str, *, fresh: bool, report: Report) -> Mapping[str, str]:
    spec = session.spec
    request = DigestsRequest(directory=directory, fresh=fresh, state_dir=spec.state_dir)
    found: dict[str, str] = {}
    for said in _lines(session, request):
        found |= said.digests
        if said.total is not None:
            report(spec.name, said.bytes, said.total)
        if said.files == len(found) > 0:
            return found
    what = f"its part of the comparison ended before all checksums were read ({len(found)} received)"
    raise NodeError(what, where=spec.name, fix="run it again; checksums already read are kept")


def _lines(session: Session, request: DigestsRequest) -> Iterator[DigestsLine]:
    """What the node says. Raises as node_app.stream does, and Unreachable where it reads nothing for SILENT_S.

    A thread reads it: a node whose file system hangs sends nothing, or the same forever, and would never end.
    """
    heard: Queue[DigestsLine | BaseException | None] = Queue(100)

    def listen() -> None:
        try:
            for said in node_app.messages(session, "digests", request, DigestsLine):
                heard.put(said)
            heard.put(None)
        except BaseException as wrong:
            heard.put(wrong)

    threading.Thread(target=listen, daemon=True).start()
    read, moved = -1, time.monotonic()
    while True:
        try:
            said = heard.get(timeout=max(0.0, moved + SILENT_S - time.monotonic()))
        except Empty:
            raise _silent(session.spec, request.directory) from None
        if said is None:
            return
        if isinstance(said, BaseException):
            raise said
        yield said
        if said.digests or said.bytes != read:
            read, moved = said.bytes, time.monotonic()
        elif time.monotonic() - moved > SILENT_S:
            raise _silent(session.spec, request.directory)


def _silent(spec: NodeSpec, directory: str) -> Unreachable:
    what = f"could read nothing of {directory} for {SILENT_S:.0f} s"
    return Unreachable(what, where=spec.name, fix="check its file system: run `ls` there and read `dmesg`")


def _judged(failure: DeployError) -> DeployError:
    if isinstance(failure, NodeRefusal) and failure.kind in _ABSENT:
        return VerificationDiffers(failure.what, where=failure.where, fix=failure.fix)
    return failure
