"""Is a serving engine well, slow or hung? Judged by generation probes and any sign of work. Pure.

A busy engine is not a hung one: a healthy cluster over PCIe pauses for 14 s between tokens and takes 7 s to the first
(the articles, yangwenbo.com). An engine is hung after three probes of 20 s in a row without a token, a log line about
a batch, or a moving counter; 20 s is also the engine's own limit (SGLANG_HEALTH_CHECK_TIMEOUT).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.protocol.staging import ProbeOrder

COMPILING_S = 10.0
"""So long a compiler that was seen below the engine counts as running; it is looked for more often."""
OWN_SHARE = 0.1
"""Share of a probe's time: a log line this soon after its start may be the probe's own prefill, and is no progress."""

OVER_NOTICE = 2.5
"""Multiple of the time in which NCCL notices a dead port (30 s). A card may take up to 4 times its nominal timeout
(InfiniBand Architecture, local ACK timeout), and most take less than twice as long."""
FEWEST = 2
"""Failed probes before an engine counts as hung, however low the operator's limit: one may be lost."""
USUAL = ProbeOrder()
WELL, SLOW, HUNG = "well", "slow", "hung"


@dataclass(frozen=True)
class ProbeTimes:
    """answer_s: how long one probe may take; probes: this many in a row without an answer or progress mean hung;
    every_s: pause between two probes of a healthy engine; pause_s: longest pause after the log has announced one;
    hung_after_s: the operator's limit in place of probes * answer_s, 0 for none
    least_s: lower bound for either: a failed port stops an engine for this long, and NCCL then continues."""

    answer_s: float = USUAL.answer_s
    probes: int = USUAL.probes
    every_s: float = USUAL.every_s
    pause_s: float = USUAL.pause_s
    hung_after_s: float = USUAL.hung_after_s
    least_s: float = 0.0

    @property
    def hung_s(self) -> float:
        """Seconds without progress that mean hung."""
        return max(self.hung_after_s or self.probes * self.answer_s, self.least_s)

    @classmethod
    def of(cls, probe: ProbeOrder, env: Mapping[str, str], notice_s: float = 0.0) -> ProbeTimes:
        """From a dialect's `probe` data; if the engine's own limit was set, it is taken from the environment."""
        answer_s = probe.answer_s
        with contextlib.suppress(KeyError, ValueError):
            answer_s = float(env[probe.answer_env])
        return cls(
            answer_s=max(answer_s, 0.1),
            probes=probe.probes,
            every_s=probe.every_s,
            pause_s=probe.pause_s,
            hung_after_s=max(probe.hung_after_s, 0.0),
            least_s=OVER_NOTICE * notice_s,
        )


@dataclass(frozen=True)
class Probe:
    """One generation probe. began, ended: monotonic seconds; detail: what happened instead of an answer.

    counters: the engine's own work counters after the probe, in any form that can be compared; '' if unknown
    at:       when it had ended, epoch seconds
    """

    answered: bool
    began: float
    ended: float
    detail: str = ""
    counters: str = ""
    at: float = 0.0


@dataclass
class Vitality:
    """Feed it every probe and every sign of work; read `word`. Counters are compared only between failed probes."""

    patience: ProbeTimes = ProbeTimes()
    word: str = WELL
    detail: str = ""
    """Text: the result of the newest probe, and how long there has been no progress."""
    _fruitless: int = 0
    _since: float = 0.0
    """When the first failed probe in a row began."""
    _progress_at: float = float("-inf")
    _counters: str = ""

    @property
    def still(self) -> bool:
        """The newest probe saw no progress: query RAS now, long before the engine counts as hung."""
        return self._fruitless > 0

    def worked(self, now: float) -> None:
        """The engine's log showed a batch."""
        self._progress_at = now

    def paused(self, now: float) -> None:
        """The engine's log announced compilation or a change of weights, during which nothing else shows that it
        works."""
        self._progress_at = now + self.patience.pause_s

    def compiled(self, now: float) -> None:
        """A compiler runs below the engine."""
        self._progress_at = max(self._progress_at, now + COMPILING_S)

    def probed(self, probe: Probe) -> bool:
        """Take one probe; True if the word has changed."""
        before = self.word
        if probe.counters and self._counters and probe.counters != self._counters:
            self._progress_at = probe.ended
        self._counters = "" if probe.answered else probe.counters
        if probe.answered:
            self.word, self.detail, self._fruitless = WELL, "", 0
        elif self._progress_at >= probe.began + OWN_SHARE * self.patience.answer_s:
            self.word, self._fruitless = SLOW, 0
            paused = self._progress_at > probe.ended
            busy = "it compiles kernels or replaces weights" if paused else "requests make progress"
            self.detail = f"{probe.detail}; {busy}"
        else:
            self._count(probe)
        return self.word != before

    def _count(self, probe: Probe) -> None:
        if not self._fruitless:
            self._since = probe.began
        self._fruitless += 1
        still = probe.ended - self._since
        asked = min(self.patience.probes, FEWEST) if self.patience.hung_after_s else self.patience.probes
        enough = self._fruitless >= asked and still >= self.patience.hung_s
        self.word = HUNG if enough or self.word == HUNG else SLOW
        self.detail = f"{probe.detail}; no new token, log line or counter change for {still:.0f} s"
