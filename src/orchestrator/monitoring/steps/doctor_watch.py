"""`doctor --watch`: checks repeatedly, and reports only what is new or resolved since the last check.

Findings are kept, so that a restarted watch continues from there.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.gang.steps.examination import examine_inventory
from orchestrator.gang.steps.locks import user
from orchestrator.gang.steps.status.reports import this_process
from orchestrator.gang.timeline import port_rates
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import Event, Inventory
from orchestrator.model.notice import Notice
from orchestrator.monitoring.steps.notify import Notifier
from orchestrator.node.look.gauges import ports
from orchestrator.protocol.gauges import GaugesAnswer
from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.severity import Severity
from orchestrator.records import documents
from orchestrator.records.documents import keep_look, last_look, looks_file


@dataclass
class DoctorWatch:
    """Look by look. command: for the audit log; accept, nodes: as of `doctor`."""

    inventory: Inventory
    notifier: Notifier
    command: str
    accept: Collection[str] = ()
    nodes: Collection[str] = ()
    _counters: Mapping[str, GaugesAnswer] = field(default_factory=dict)

    def look(self) -> FindingsChange:
        """Examine every node, tell and keep what has changed. Raises InputError where nothing can be kept."""
        seen = examine_inventory(self.inventory, accept=self.accept, nodes=self.nodes)
        file = looks_file(self.inventory.path)
        _, kept = last_look(file) or (0.0, [])
        before = [
            known_finding for known_finding in map(KnownFinding.read, kept) if isinstance(known_finding, KnownFinding)
        ]
        change, after = difference(before, known(seen.findings), {*seen.failures, *self._not_asked()})
        counters = {
            name: GaugesAnswer(now=snapshot.taken_at, ports=ports(dict(snapshot.files)))
            for name, snapshot in seen.cluster.snapshots.items()
        }
        change = replace(change, silent=tuple(sorted(seen.failures)), growths=growths(self._counters, counters))
        self._counters = {**self._counters, **counters}
        now = time.time()
        keep_look(file, now, [finding.as_json() for finding in after])
        self._note(change)
        for notice in notices(change, now):
            self.notifier.tell(notice)
        return change

    def _not_asked(self) -> set[str]:
        """Whose findings stay as they were: the nodes left out, and '' for the cluster, for which some can't speak."""
        left = {node.name for node in self.inventory.nodes if self.nodes and node.name not in self.nodes}
        return left | {""} if left else left

    def _note(self, change: FindingsChange) -> None:
        """In the audit log of this machine: the nodes' own logs record commands that changed them."""
        gangs = {node.name: node.gang for node in self.inventory.nodes}
        holder = {"who": user(), "host": socket.gethostname(), "command": self.command, "pid": this_process()["pid"]}
        for action, findings in (("found", change.new), ("gone", change.gone)):
            for finding in findings:
                documents.note(action, gang=gangs.get(finding.node, ""), holder=holder, why=finding.words)


@dataclass(frozen=True, slots=True)
class KnownFinding(Message):
    """A finding as kept between checks: counts in titles and evidence may change, this does not."""

    id: str
    severity: str
    node: str
    devices: tuple[str, ...]
    title: str
    fix: str

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """The same finding in another check has the same one."""
        return self.id, self.node, self.devices

    @property
    def words(self) -> str:
        """One line."""
        return f"{self.severity} {self.node or 'all nodes'}: {self.title} [{self.id}]"


@dataclass(frozen=True, slots=True)
class Growth(Message):
    """An error counter of an RDMA port that grew between two checks."""

    node: str
    device: str
    counter: str
    more: int
    seconds: float

    @property
    def words(self) -> str:
        """One line, with the rate."""
        return f"{self.node} {self.device}: {self.counter} +{self.more} ({self.more / self.seconds:.3g} a second)"


@schema(frozen=True, slots=True, kw_only=True)
class FindingsChange(Message):
    """What one check found that the last one did not; silent: nodes that did not answer and keep their findings."""

    new: tuple[KnownFinding, ...] = ()
    gone: tuple[KnownFinding, ...] = ()
    growths: tuple[Growth, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """For the screen and the audit log."""
        changes: dict[str, tuple[KnownFinding | Growth, ...]]
        changes = {"new": self.new, "gone": self.gone, "grows": self.growths}
        return tuple(f"{word}: {finding.words}" for word, changed in changes.items() for finding in changed)


def known(findings: Iterable[Finding]) -> tuple[KnownFinding, ...]:
    """As they are kept."""
    return tuple(
        KnownFinding(finding.id, finding.severity.value, finding.node, finding.devices, finding.title, finding.fix)
        for finding in findings
    )


def difference(
    before: Sequence[KnownFinding], now: Sequence[KnownFinding], silent: Collection[str]
) -> tuple[FindingsChange, tuple[KnownFinding, ...]]:
    """(what is new and gone, what is known from now on). A node that was not checked keeps its findings."""
    old, fresh = {finding.key: finding for finding in before}, {finding.key: finding for finding in now}
    kept = [finding for finding in before if finding.node in silent and finding.key not in fresh]
    new = tuple(finding for key, finding in fresh.items() if key not in old or old[key].severity != finding.severity)
    gone = tuple(finding for key, finding in old.items() if key not in fresh and finding.node not in silent)
    return FindingsChange(new=new, gone=gone), (*now, *kept)


def growths(before: Mapping[str, GaugesAnswer], now: Mapping[str, GaugesAnswer]) -> tuple[Growth, ...]:
    """Every error, discard or congestion counter that grew, node by node; time is each node's own."""
    grown: list[Growth] = []
    for node, gauges in now.items():
        earlier = before.get(node)
        if earlier is None or gauges.now <= earlier.now:
            continue
        for rate in port_rates(earlier, gauges):
            seconds = gauges.now - earlier.now
            grown += [Growth(node, rate.device, counter, more, seconds) for counter, more in rate.grown.items()]
    return tuple(grown)


def notices(change: FindingsChange, at: float) -> tuple[Notice, ...]:
    """A message for each new finding that stops a start or costs speed."""
    return tuple(
        Notice(
            event=Event.FINDING,
            subject=finding.node or "cluster",
            text=f"{finding.id} ({finding.severity}): {finding.title}",
            fix=finding.fix,
            at=at,
        )
        for finding in change.new
        if finding.severity in (Severity.STOP.value, Severity.SLOW.value)
    )
