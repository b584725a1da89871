"""One chain of a push: the source and the nodes behind it, each fetching from the one before it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from orchestrator.checkpoint.on_node.push.target import checked
from orchestrator.model.deadlines import FIRST_LINE_S, INSPECT_S, SILENT_S
from orchestrator.node.files import FIX
from orchestrator.protocol.errors import DeployError, NodeError, Unreachable
from orchestrator.protocol.jobs import Giving, PushLine, ReceiveRequest
from orchestrator.protocol.message import Message
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal, StreamLimit
from orchestrator.remote.port_forward import port_forward
from orchestrator.remote.session import Session

LOOK_S = 0.2
_PUSHES = StreamLimit(line_s=INSPECT_S)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Hop:
    """Progress of a link of the chain. bytes: complete or being checked; state: waiting, fetching, complete, failed"""

    name: str
    state: str
    bytes: int
    there: bool = False
    """It had all files before."""
    sent: int = 0
    """Files that had to be sent."""


class VerbStream:
    """A push's verb on one machine, read by a thread of its own. first: where it gives its files; now: how far it is"""

    def __init__(self, fleet: Fleet, name: str, verb: str, request: Message) -> None:
        self.name = name
        self.first: PushLine | None = None
        self.now: PushLine | None = None
        self.failure: DeployError | None = None
        self._listed: dict[str, int] = {}
        self._heard = time.monotonic()
        self._over = False
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(fleet, verb, request), daemon=True)
        self._thread.start()

    @property
    def complete(self) -> bool:
        return self.now is not None and self.now.complete

    @property
    def read(self) -> int:
        """Bytes of its files so far."""
        return self.now.bytes if self.now else 0

    def begin(self, address: str) -> Giving:
        """Wait for its first word: where it gives its files, at this address of its. Raises what the machine reported,
        Unreachable if it reported nothing."""
        if not self._begun.wait(FIRST_LINE_S):
            raise self._silent(FIRST_LINE_S)
        if self.failure is not None:
            raise self.failure
        assert self.first is not None
        return Giving(address=address, port=self.first.port, secret=self.first.secret)

    def judge(self) -> None:
        """Silence is a failure too."""
        if self.failure is None and time.monotonic() - self._heard > SILENT_S:
            self.failure = self._silent(SILENT_S)

    def files(self) -> Mapping[str, int]:
        """The files that it listed, with their bytes. Raises NodeError where one does not stay below the directory."""
        try:
            return checked(self._listed)
        except ValueError as wrong:
            raise self._odd(f"its list of files is not valid: {wrong}") from None

    def end(self) -> None:
        """Nobody listens any more: the machine ends what it started."""
        self._over = True

    def wait(self) -> None:
        """Until the thread has closed its channel."""
        self._thread.join(FIRST_LINE_S)

    def hop(self) -> Hop:
        there = self.first is not None and bool(self.first.there)
        sent = self.now.sent if self.now else 0
        return Hop(self.name, self._state(), self.read, there, sent)

    def _state(self) -> str:
        if self.failure:
            return "failed"
        if self.complete:
            return "complete"
        return "fetching" if self.now else "waiting"

    def _live(self, fleet: Fleet, verb: str, request: Message) -> None:
        try:
            result = fleet.on_every(lambda session: self._read(session, verb, request), only={self.name})
            self.failure = self.failure or result.failures.get(self.name)
        except Exception as defect:
            self.failure = self.failure or DeployError(
                f"{type(defect).__name__}: {defect}", where=self.name, fix="report this"
            )
        if self.failure is None and not self._over:
            self.failure = Unreachable(
                f"its part of the push ended ({verb})", where=self.name, fix="push again; it resumes where it stopped"
            )
        self._begun.set()

    def _read(self, session: Session, verb: str, request: Message) -> None:
        with closing(node_app.messages(session, verb, request, PushLine, _PUSHES)) as lines:
            for line in lines:
                self._hear(line)
                if self._over:
                    return

    def _hear(self, line: PushLine) -> None:
        self._heard = time.monotonic()
        if self.first is not None:
            self.now = line
        elif line.files is not None:
            self._listed |= line.files
        elif line.port or line.secret:
            if not 0 < line.port < 65536 or not line.secret.isalnum():
                raise self._odd("it did not report a port and secret for the other nodes")
            self.first = line
            self._begun.set()

    def _odd(self, what: str) -> NodeError:
        return NodeError(what, where=self.name, fix=FIX)

    def _silent(self, seconds: float) -> Unreachable:
        fix = "check that the node and its disk respond, then push again; it resumes where it stopped"
        return Unreachable(f"no progress reported for {seconds:.0f} s", where=self.name, fix=fix)


@dataclass(frozen=True, slots=True)
class Chain:
    """A source that offers already, and how to reach the nodes.

    source:    where the origin gives its files
    local:     the source is this machine: the first node comes to it through SSH
    addresses: each node's in the network that carries the bytes
    requests:  what every node is asked beside what the chain itself adds
    """

    fleet: Fleet
    origin: VerbStream
    source: Giving
    files: Mapping[str, int]
    local: bool
    addresses: Mapping[str, str]
    requests: Mapping[str, ReceiveRequest]

    def run(
        self, names: Sequence[str], report: Callable[[Sequence[Hop]], None]
    ) -> tuple[list[Hop], dict[str, DeployError]]:
        """Until every node has everything or one has failed: (the complete ones, the failures).

        A node whose only complaint is the one before it has not failed, where that one has. Raises what befell the
        source.
        """
        links: list[VerbStream] = []
        with ExitStack() as ends:
            ends.callback(_end_all, links)
            if not (failures := self._build(names, links, ends)):
                self._watch(links, report)
        if self.origin.failure is not None:
            raise self.origin.failure
        failures |= {link.name: link.failure for link in links if link.failure is not None}
        real = {name: failure for name, failure in failures.items() if not _blames_another(failure)}
        first = dict(list(failures.items())[:1])
        return [link.hop() for link in links if link.complete], real or first

    def _build(self, names: Sequence[str], links: list[VerbStream], ends: ExitStack) -> dict[str, DeployError]:
        """Begin every link; {} or the first that could not begin."""
        before = self.source
        for name in names:
            if self.local and name == names[0] and self.fleet.nodes[name].reach.connection != "local":
                try:
                    before = replace(before, port=ends.enter_context(port_forward(self.fleet.nodes[name], before.port)))
                except Unreachable as failure:
                    return {name: failure}
            address = LOOPBACK if name == names[-1] else self.addresses[name]
            asked = replace(self.requests[name], files=self.files, upstream=before, address=address)
            links.append(VerbStream(self.fleet, name, "push-receive", asked))
            try:
                before = links[-1].begin(address)
            except DeployError as failure:
                return {name: failure}
        return {}

    def _watch(self, links: Sequence[VerbStream], report: Callable[[Sequence[Hop]], None]) -> None:
        while True:
            for link in (self.origin, *links):
                link.judge()
            report([link.hop() for link in links])
            if self.origin.failure or any(link.failure for link in links) or all(link.complete for link in links):
                return
            time.sleep(LOOK_S)


def _blames_another(failure: DeployError) -> bool:
    """Whether a node's only complaint is the one before it."""
    return isinstance(failure, NodeRefusal) and failure.kind == "upstream"


def _end_all(links: Sequence[VerbStream]) -> None:
    for link in links:
        link.end()
    for link in links:
        link.wait()
