"""Is a serving engine well, slow or hung? Judged by generation probes and any sign of work. Pure.

A busy engine is not a hung one: a healthy cluster over PCIe pauses for 14 s between tokens and takes 7 s to the first
(the articles, yangwenbo.com). An engine is hung after three probes of 20 s in a row without a token, a log line about
a batch, or a moving counter; 20 s is also the engine's own limit (SGLANG_HEALTH_CHECK_TIMEOUT).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
WELL, SLOW, HUNG = "well", "slow", "hung"


def with_engines_own(probe: ProbeOrder, env: Mapping[str, str]) -> ProbeOrder:
    """A dialect's `probe` data; if the engine's own limit for an answer was set, it is taken from the environment."""
    answer_s = probe.answer_s
    with contextlib.suppress(KeyError, ValueError):
        answer_s = float(env[probe.answer_env])
    return replace(probe, answer_s=max(answer_s, 0.1))


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
    """Feed it every probe and every sign of work; read `word`. Counters are compared only between failed probes.

    notice_s: in which NCCL notices a dead port, 0 if it does not look; an engine stops for that time, and then goes on
    """

    patience: ProbeOrder = field(default_factory=ProbeOrder)
    notice_s: float = 0.0
    word: str = WELL
    detail: str = ""
    """Text: the result of the newest probe, and how long there has been no progress."""
    _fruitless: int = 0
    _since: float = 0.0
    """When the first failed probe in a row began."""
    _progress_at: float = float("-inf")
    _counters: str = ""

    @property
    def hung_s(self) -> float:
        """Seconds without progress that mean hung."""
        patience = self.patience
        usual_s = patience.hung_after_s if patience.hung_after_s > 0 else patience.probes * patience.answer_s
        return max(usual_s, OVER_NOTICE * self.notice_s)

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
        asked = min(self.patience.probes, FEWEST) if self.patience.hung_after_s > 0 else self.patience.probes
        enough = self._fruitless >= asked and still >= self.hung_s
        self.word = HUNG if enough or self.word == HUNG else SLOW
        self.detail = f"{probe.detail}; no new token, log line or counter change for {still:.0f} s"
