"""What is new and what is resolved between two checks of doctor, and how fast errors grow. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.gang.rates import port_rates
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.notice import Notice
from orchestrator.model.notify import Event
from orchestrator.protocol.gauges import GaugesAnswer


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding as kept between checks: counts in titles and evidence may change, this does not."""

    id: str
    severity: str
    node: str
    devices: tuple[str, ...]
    title: str
    fix: str = ""

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """The same finding in another check has the same one."""
        return self.id, self.node, self.devices

    @property
    def words(self) -> str:
        """One line."""
        return f"{self.severity} {self.node or 'all nodes'}: {self.title} [{self.id}]"


@dataclass(frozen=True, slots=True)
class Growth:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsChange:
    """What one check found that the last one did not; silent: nodes that did not answer and keep their findings."""

    new: tuple[KnownFinding, ...] = ()
    gone: tuple[KnownFinding, ...] = ()
    growths: tuple[Growth, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """For the screen and the audit log."""
        return (
            *(f"new: {one.words}" for one in self.new),
            *(f"gone: {one.words}" for one in self.gone),
            *(f"grows: {one.words}" for one in self.growths),
        )


def known(findings: Iterable[Finding]) -> tuple[KnownFinding, ...]:
    """As they are kept."""
    return tuple(
        KnownFinding(one.id, one.severity.value, one.node, one.devices, one.title, one.fix) for one in findings
    )


def difference(
    before: Sequence[KnownFinding], now: Sequence[KnownFinding], silent: Collection[str]
) -> tuple[FindingsChange, tuple[KnownFinding, ...]]:
    """(what is new and gone, what is known from now on). A node that was not checked keeps its findings."""
    old, fresh = {one.key: one for one in before}, {one.key: one for one in now}
    kept = [one for one in before if one.node in silent and one.key not in fresh]
    new = tuple(one for key, one in fresh.items() if key not in old or old[key].severity != one.severity)
    gone = tuple(one for key, one in old.items() if key not in fresh and one.node not in silent)
    return FindingsChange(new=new, gone=gone, silent=tuple(sorted(silent))), (*now, *kept)


def growths(before: Mapping[str, GaugesAnswer], now: Mapping[str, GaugesAnswer]) -> tuple[Growth, ...]:
    """Every error, discard or congestion counter that grew, node by node; time is each node's own."""
    return tuple(
        Growth(node, rate.device, counter, more, gauges.now - before[node].now)
        for node, gauges in now.items()
        if node in before and gauges.now > before[node].now
        for rate in port_rates(before[node], gauges)
        for counter, more in rate.grown.items()
    )


def notices(found: FindingsChange, at: float) -> tuple[Notice, ...]:
    """A message for each new finding that stops a start or costs speed."""
    graver = (Severity.STOP.value, Severity.SLOW.value)
    return tuple(
        Notice(
            event=Event.FINDING,
            subject=one.node or "cluster",
            text=f"{one.id} ({one.severity}): {one.title}",
            fix=one.fix,
            at=at,
        )
        for one in found.new
        if one.severity in graver
    )
