"""A metric, and the figures of it that one scrape found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class MetricKind(str, Enum):
    """As in Prometheus' exposition format."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One name. labels: in their order.

    Names and units are as Prometheus wants them: base units in the name, `_total` for what only counts up
    (prometheus.io/docs/practices/naming).
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE

    def __post_init__(self) -> None:
        """A counter ends with _total, and nothing else does."""
        assert self.name.endswith("_total") == (self.kind is MetricKind.COUNTER), self.name


@dataclass(frozen=True, slots=True)
class Family:
    """A metric's samples: values of its labels in their order, and the figure."""

    metric: Metric
    samples: tuple[tuple[tuple[str, ...], float], ...]


@dataclass
class Families:
    """Gathers samples; what is None is left out, since Prometheus shows nothing better than a false zero."""

    _samples: dict[Metric, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def add(self, metric: Metric, value: float | None, **labels: object) -> None:
        """A second sample with the same labels takes the place of the first."""
        samples = self._samples.setdefault(metric, {})
        if value is not None:
            samples[tuple(str(labels[name]) for name in metric.labels)] = float(value)

    def states(self, metric: Metric, now: str, of: Iterable[str], **labels: object) -> None:
        """A sample for each state, 1 for the one that is: the metric's last label."""
        for state in dict.fromkeys((*of, now)):
            self.add(metric, state == now, **labels, **{metric.labels[-1]: state})

    def done(self) -> tuple[Family, ...]:
        """In the order in which they came."""
        return tuple(Family(metric, tuple(samples.items())) for metric, samples in self._samples.items())


def named(families: Iterable[Family]) -> Mapping[str, Family]:
    """By name."""
    return {family.metric.name: family for family in families}
