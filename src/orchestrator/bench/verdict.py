"""Whether a speed is normal: compares a run's figures with expected ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf, sqrt
from statistics import fmean, stdev

from orchestrator.bench.text import NAME
from orchestrator.model.profile import FIGURES, ExpectedSpeeds, Figure, Load

AS_EXPECTED, NOTEWORTHY = 0.9, 0.8
"""Share of the expected speed from which on a figure is as expected, and from which on it is only a note."""

FEWEST_RUNS, MOST_RUNS = 2, 5
"""Measured runs: as many as decide every figure. Runs of one load differ by 30 % on a small model."""
_STUDENT = {2: 6.314, 3: 2.920, 4: 2.353, 5: 2.132}
"""By the number of runs: Student's t of an interval that has the mean in 90 of 100 cases."""
SHORT_S = 5.0
"""Two runs of 8 requests within 0.7 s of the same engine, idle, differed by 17 % (the real SGLang on 2 processors)."""


class BenchVerdict(Enum):
    """Of one figure, and of a run; the gravest first."""

    SLOW = "BENCH-SLOW"
    UNDECIDED = "not decidable"
    NOTE = "note"
    EXPECTED = "as expected"
    NONE = "not judged"


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    """One figure. speed: share of the expected speed, 1 where both are the same. noise: half of the interval that its
    runs leave for the mean, as a share of it; 0 for a single run"""

    figure: Figure
    found: float
    expected: float
    speed: float
    noise: float = 0.0

    @property
    def verdict(self) -> BenchVerdict:
        """By the share alone; faster is as expected. Undecided where the runs leave room for two verdicts, and more of
        it than lies between them."""
        least, most = (_verdict_of(self.speed * (1 + way * self.noise)) for way in (-1, 1))
        if least is most or 2 * self.speed * self.noise <= AS_EXPECTED - NOTEWORTHY:
            return _verdict_of(self.speed)
        return BenchVerdict.UNDECIDED


def _verdict_of(speed: float) -> BenchVerdict:
    if speed >= AS_EXPECTED:
        return BenchVerdict.EXPECTED
    return BenchVerdict.NOTE if speed >= NOTEWORTHY else BenchVerdict.SLOW


def mean_of(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each figure that all of them have."""
    return {name: fmean(run[name] for run in runs) for name in runs[0] if all(name in run for run in runs)}


def noise_of(name: str, runs: Sequence[Mapping[str, float]]) -> float:
    """Half of the interval that these runs leave for the mean of a figure, as a share of it; 0 for fewer than two."""
    values = [run[name] for run in runs if name in run]
    if len(values) < FEWEST_RUNS or not fmean(values):
        return 0.0
    return _STUDENT[min(len(values), MOST_RUNS)] * stdev(values) / sqrt(len(values)) / fmean(values)


def judge(
    figures: Mapping[str, float], expected: Mapping[str, float], runs: Sequence[Mapping[str, float]] = ()
) -> tuple[JudgedFigure, ...]:
    """The figures that both have and that can be compared (above zero). runs: those whose mean `found` is"""
    return tuple(
        JudgedFigure(figure, ours, theirs, ours / theirs if figure.more else theirs / ours, noise_of(figure.name, runs))
        for figure in FIGURES
        if (ours := figures.get(figure.name, 0.0)) > 0 and (theirs := expected.get(figure.name, 0.0)) > 0
    )


def overall(judged: Iterable[JudgedFigure]) -> BenchVerdict:
    """The worst of those figures that decide; NONE where there is none."""
    return gravest(figure.verdict for figure in judged if figure.figure.decides)


def gravest(verdicts: Iterable[BenchVerdict]) -> BenchVerdict:
    """NONE where nothing was judged."""
    return min(verdicts, key=list(BenchVerdict).index, default=BenchVerdict.NONE)


def applying(
    entries: Iterable[ExpectedSpeeds], *, stack: str, layout: str, gpu: str, load: Load
) -> tuple[ExpectedSpeeds, ...]:
    """The entries for just this case: another stack, layout, GPU or load has other figures."""
    case = (stack, layout, gpu, load)
    return tuple(entry for entry in entries if (entry.stack, entry.layout, entry.gpu, entry.load) == case)


def held_against(entries: Iterable[ExpectedSpeeds]) -> ExpectedSpeeds | None:
    """What a run is judged by: the first that was measured with right wiring."""
    return next((entry for entry in entries if entry.wiring == "right"), None)


def other_prompts(entry: ExpectedSpeeds | None, dataset: str) -> str:
    """Why a run can't be judged by an entry whose prompts it did not send; '' where it can. dataset: the run's"""
    if entry is None or not entry.dataset or dataset != NAME:
        return ""
    return f"its prompts were of {entry.dataset}, these are our own text: a verdict wants --dataset FILE"


def looks_like_wrong_wiring(figures: Mapping[str, float], entries: Iterable[ExpectedSpeeds]) -> ExpectedSpeeds | None:
    """The entry of a wrongly wired cluster that the output speed is nearer to than to the right one; None for none."""
    entries, speed = tuple(entries), figures.get("output_tok_s", 0.0)

    def apart(entry: ExpectedSpeeds) -> float:
        return abs(speed - dict(entry.figures).get("output_tok_s", inf))

    right = held_against(entries)
    if right is None or speed <= 0:
        return None
    return next((entry for entry in entries if entry.wiring == "wrong" and apart(entry) < apart(right)), None)


def causes(
    *,
    transport: Sequence[str],
    remarks: Sequence[str],
    graph_batch: int | None,
    shares: int = 1,
    load: Load,
    throttled: Iterable[str] = (),
    grown: Iterable[str] = (),
    network: str = "",
    wrong: ExpectedSpeeds | None,
    duration_s: float = SHORT_S,
) -> tuple[str, ...]:
    """Why a run may be slow, the best evidence first: that it was too short to tell, NCCL's transport of this
    start, tuned configs that the engine misses, graphs smaller than the batch, clocks, counters of errors, the last
    network test, and what the figures look like.

    graph_batch: the largest that is captured, 0 for none, None where it is not known; shares: batches that share the
    requests; throttled, grown: as `bench.machines` says; network: what the last test of this gang found slow, '' for
    nothing
    """
    causes_seen = [*transport]
    if duration_s < SHORT_S:
        causes_seen.insert(0, f"the run took {duration_s:.1f} s: so short a run is not the same twice; raise --prompts")
    causes_seen += [remark for remark in remarks if "tuned" in remark]
    if graph_batch is not None and graph_batch < (share := ceil(load.concurrency / shares)):
        causes_seen.append(_beyond_graphs(graph_batch, load.concurrency, share))
    causes_seen += [*throttled, *grown]
    if network:
        causes_seen.append(f"the last network test: {network}")
    if wrong is not None:
        causes_seen.append(f"the figures are closer to {wrong.name} than to correct wiring ({wrong.source})")
    return tuple(causes_seen)


def _beyond_graphs(graph_batch: int, requests: int, share: int) -> str:
    """graph_batch: the largest that is captured, 0 for none; share: of the requests, in a batch. The factor is bounded
    by the articles' two runs at 128 requests: FP8 beyond its graphs 220 ms between tokens, INT8 within graphs 163 ms,
    quantisation included."""
    graphs = "no CUDA graph is captured"
    if graph_batch:
        graphs = f"CUDA graphs are captured up to a batch size of {graph_batch}"
    batches = f" in batches of {share}" if share < requests else ""
    return (
        f"{graphs}, but {requests} requests run at once{batches}: their steps run eager, the host launches each kernel."
        f" With graphs up to {share} (cuda_graph_max_bs of the profile), 1.0 to 1.4 times the speed may be expected on"
        " L40S: a guess"
    )
