"""Copies of one directory: which nodes see one and the same, what differs between the others, what puts it right.

`checkpoint verify`: every node reads its copy, and the digests are compared.
"""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from queue import Empty, Queue

from orchestrator.checkpoint.steps.checkpoint import of_its_kind
from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.model.chosen import chosen_nodes
from orchestrator.model.deadlines import INSPECT_S, SAME_ROOT_S, SILENT_S
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.model.per_node import PerNode, majority
from orchestrator.protocol.errors import NodeError, Unreachable, VerificationDiffers
from orchestrator.protocol.jobs import DigestsLine, DigestsRequest, SameRootAnswer, SameRootRequest
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

_KINDS = dict.fromkeys(("no-checkpoint", "unfinished"), VerificationDiffers)
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

    def repairs(self) -> Iterator[str]:
        """What to do about copies that differ, one line each."""
        return repairs(self.differences, self.directories, list(self.copies.values))


def verify(inventory: Inventory, what: str, *, to: Sequence[str], fresh: bool, report: Report) -> VerifyResult:
    """Compare the copies of one checkpoint. A node without a complete copy is a failure beside the others' digests.

    what:  an absolute path, the same on all nodes; or a model or directory below each node's model root
    fresh: read everything, whatever digests are remembered
    """
    began = time.monotonic()
    specs = chosen_nodes(inventory.nodes, to, "--node")
    directories = {name: _directory(spec, what) for name, spec in specs.items()}
    with Fleet(specs.values()) as fleet:
        shared = shared_copies(fleet, directories)

        def read(session: Session) -> Mapping[str, str]:
            return _digests(session, directories[session.spec.name], fresh=fresh, report=report)

        copies = fleet.on_every(read, only={name for name in directories if name not in shared})
    failures = {name: of_its_kind(failure, _KINDS) for name, failure in copies.failures.items()}
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


def shared_copies(fleet: Fleet, directories: Mapping[str, str]) -> dict[str, str]:
    """{node: owner} where a node's copy is an earlier one's. directories: each node's, all of one name."""
    if len(directories) < 2:
        return {}
    parents = {name: str(PurePosixPath(directory).parent) for name, directory in directories.items()}
    child = next(PurePosixPath(directory).name for directory in directories.values())
    return {name: owner for name, owner in same_roots(fleet, parents, child).items() if owner != name}


def _digests(session: Session, directory: str, *, fresh: bool, report: Report) -> Mapping[str, str]:
    spec = session.spec
    request = DigestsRequest(directory=directory, fresh=fresh, state_dir=spec.state_dir)
    digests: dict[str, str] = {}
    for line in _lines(session, request):
        digests |= line.digests
        if line.total is not None:
            report(spec.name, line.bytes, line.total)
        if line.files == len(digests) > 0:
            return digests
    raise NodeError(
        f"its part of the comparison ended before all checksums were read ({len(digests)} received)",
        where=spec.name,
        fix="run it again; checksums already read are kept",
    )


_READS = node_app.StreamLimit(line_s=INSPECT_S)


def _lines(session: Session, request: DigestsRequest) -> Iterator[DigestsLine]:
    """What the node says. Raises as node_app.stream does, and Unreachable where it reads nothing for SILENT_S.

    A thread reads it: a node whose file system hangs sends nothing, or the same forever, and would never end.
    """
    heard: Queue[DigestsLine | BaseException | None] = Queue(100)

    def listen() -> None:
        try:
            for line in node_app.messages(session, "digests", request, DigestsLine, _READS):
                heard.put(line)
            heard.put(None)
        except BaseException as wrong:
            heard.put(wrong)

    threading.Thread(target=listen, daemon=True).start()
    read, moved = -1, time.monotonic()
    while True:
        try:
            message = heard.get(timeout=max(0.0, moved + SILENT_S - time.monotonic()))
        except Empty:
            raise _silent(session.spec, request.directory) from None
        if message is None:
            return
        if isinstance(message, BaseException):
            raise message
        yield message
        if message.digests or message.bytes != read:
            read, moved = message.bytes, time.monotonic()
        elif time.monotonic() - moved > SILENT_S:
            raise _silent(session.spec, request.directory)


def _silent(spec: NodeSpec, directory: str) -> Unreachable:
    return Unreachable(
        f"could read nothing of {directory} for {SILENT_S:.0f} s",
        where=spec.name,
        fix="check its file system: run `ls` there and read `dmesg`",
    )


def same_roots(fleet: Fleet, directories: Mapping[str, str], child: str = "") -> Mapping[str, str]:
    """For each node the first node that sees the same directory, itself if no other node does.

    directories: each node's, by name. One that does not answer is left out.
    What a node says decides for that node alone: none can say of another one that it has what it has not. A node that
    can't write there sees the others' files and not its own; it belongs to the first one that it sees.
    child: a name below them; where it is a mount of its own, or a link to another file system, nobody else has it
    """
    names = {node: f".l40s-nonce-{secrets.token_hex(12)}" for node in directories}

    def on_every(op: str) -> Mapping[str, SameRootAnswer]:
        def ask_roots(session: Session) -> SameRootAnswer:
            name = session.spec.name
            request = SameRootRequest(
                op=op, directory=directories[name], name=names[name], names=tuple(names.values()), child=child
            )
            return node_app.ask(session, "same-root", request, SameRootAnswer, deadline_s=SAME_ROOT_S)

        return fleet.on_every(ask_roots, only=set(directories)).values

    try:
        on_every("write")
        looked = on_every("look")
    finally:
        on_every("remove")
    owners = {name: node for node, name in names.items()}
    seen = _nodes_seen(looked, owners)
    # the first in order that a node sees and that sees its own file; no chain is followed: a lie could make one
    own = [node for node in directories if node in seen.get(node, ())]
    return {node: next((other for other in own if other in mine), node) for node, mine in seen.items()}


@dataclass(frozen=True, slots=True)
class FileDifference:
    """One file that is not the same everywhere.

    digests: each node's SHA-256, '' where the file is missing
    odd:     nodes that differ from most; () where there is no majority to hold them to
    """

    path: str
    digests: Mapping[str, str]
    odd: tuple[str, ...]

    @property
    def is_extra(self) -> bool:
        """A file that most do not have."""
        return bool(self.odd) and not any(digest for node, digest in self.digests.items() if node not in self.odd)

    def words(self) -> str:
        """'node2 differs', 'missing on node3', or who has what."""
        if not self.odd:
            sides = "; ".join(f"{node} {digest[:12] or 'missing'}" for node, digest in self.digests.items())
            return f"not the same: {sides}"
        missing = [node for node in self.odd if not self.digests[node]]
        other = [node for node in self.odd if self.digests[node]]
        parts = [f"missing on {', '.join(missing)}"] if missing else []
        return ", ".join(parts + ([f"differs on {', '.join(other)}"] if other else []))


def differences(copies: Mapping[str, Mapping[str, str]]) -> tuple[FileDifference, ...]:
    """The files that differ, by path. copies: SHA-256 by path, for every node."""
    paths = sorted({path for copy in copies.values() for path in copy})
    differing = []
    for path in paths:
        digests = {node: copy.get(path, "") for node, copy in copies.items()}
        if len(set(digests.values())) > 1:
            most = majority(digests)  # of two copies nobody knows which is right, but one that is not there is not
            odd = most[1] if most else [node for node, digest in digests.items() if not digest]
            differing.append(FileDifference(path, digests, tuple(odd)))
    return tuple(differing)


def repair_command(source: str, nodes: Sequence[str], name: str = "") -> str:
    """source: a directory of this machine, or NODE:/path; name: of the copies, where it is not the source's own."""
    named = " ".join(f"--node {shlex.quote(node)}" for node in nodes)
    renamed = f"--as {shlex.quote(name)} " if name and _last(source) != name else ""
    return f"l40s-deploy checkpoint push {shlex.quote(source)} {named} {renamed}--repair"


def _nodes_seen(looked: Mapping[str, SameRootAnswer], owners: Mapping[str, str]) -> dict[str, set[str]]:
    """{node: those whose files it sees}; none where its directory is a mount of its own. owners: of each file's name"""
    alone = {node for node, answer in looked.items() if answer.apart}
    return {
        node: set() if node in alone else {owners[name] for name in set(answer.seen) & set(owners)} - alone
        for node, answer in looked.items()
    }


def repairs(
    differences: Sequence[FileDifference], directories: Mapping[str, str], read: Sequence[str]
) -> Iterator[str]:
    """What to do about copies that differ, one line each. read: nodes whose copy could be read."""
    odd = dict.fromkeys(node for difference in differences for node in difference.odd if not difference.is_extra)
    good = _right_copy(differences, read)
    if good is not None:
        for node in odd:
            yield repair_command(f"{good}:{directories[good]}", [node], _last(directories[node]))
    for difference in differences:
        if difference.is_extra:
            yield f"remove {difference.path} on {', '.join(difference.odd)}: the other nodes do not have it"
    if any(not differing.odd for differing in differences) or (odd and good is None):
        first, *others = read
        command = repair_command(f"{first}:{directories[first]}", others)
        yield f"find the right copy by its publisher's checksums, then push from that one: {command}"


def _right_copy(differences: Sequence[FileDifference], read: Sequence[str]) -> str | None:
    """The first node whose copy is nowhere the odd one."""
    odd = {node for difference in differences for node in difference.odd}
    return next((node for node in read if node not in odd), None)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].rpartition(":")[2]
