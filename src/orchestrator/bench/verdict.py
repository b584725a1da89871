"""Whether a speed is normal: compares a run's figures with expected ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from orchestrator.bench.text import NAME
from orchestrator.model.benchmark import FIGURES, ExpectedSpeeds, Figure, Load

AS_EXPECTED, NOTEWORTHY = 0.9, 0.8
"""Share of the expected speed from which on a figure is as expected, and from which on it is only a note."""


SHORT_S = 5.0
"""Two runs of 8 requests within 0.7 s of the same engine, idle, differed by 17 % (the real SGLang on 2 processors)."""


class BenchVerdict(Enum):
    """Of one figure, and of a run."""

    EXPECTED = "as expected"
    NOTE = "note"
    SLOW = "BENCH-SLOW"
    NONE = "not judged"


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    """One figure. speed: share of the expected speed, 1 where both are the same."""

    figure: Figure
    found: float
    expected: float
    speed: float

    @property
    def verdict(self) -> BenchVerdict:
        """By the share alone; faster is as expected."""
        if self.speed >= AS_EXPECTED:
            return BenchVerdict.EXPECTED
        return BenchVerdict.NOTE if self.speed >= NOTEWORTHY else BenchVerdict.SLOW


def judge(found: Mapping[str, float], expected: Mapping[str, float]) -> tuple[JudgedFigure, ...]:
    """The figures that both have and that can be compared (above zero)."""
    return tuple(
        JudgedFigure(figure, ours, theirs, ours / theirs if figure.more else theirs / ours)
        for figure in FIGURES
        if (ours := found.get(figure.name, 0.0)) > 0 and (theirs := expected.get(figure.name, 0.0)) > 0
    )


def overall(judged: Iterable[JudgedFigure]) -> BenchVerdict:
    """The worst of those figures that decide; NONE where there is none."""
    return gravest(one.verdict for one in judged if one.figure.decides)


def gravest(verdicts: Iterable[BenchVerdict]) -> BenchVerdict:
    """NONE where nothing was judged."""
    found = set(verdicts)
    return next(
        (verdict for verdict in (BenchVerdict.SLOW, BenchVerdict.NOTE, BenchVerdict.EXPECTED) if verdict in found),
        BenchVerdict.NONE,
    )


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


def looks_like_wrong_wiring(found: Mapping[str, float], entries: Iterable[ExpectedSpeeds]) -> ExpectedSpeeds | None:
    """The entry of a wrongly wired cluster that the output speed is nearer to than to the right one; None for none."""
    speed, right = found.get("output_tok_s", 0.0), None
    entries = tuple(entries)
    right = held_against(entries)
    if right is None or speed <= 0:
        return None
    wanted = dict(right.figures).get("output_tok_s", 0.0)
    for entry in entries:
        theirs = dict(entry.figures).get("output_tok_s", 0.0)
        if entry.wiring == "wrong" and theirs > 0 and abs(speed - theirs) < abs(speed - wanted):
            return entry
    return None


def causes(
    *,
    transport: Sequence[str],
    remarks: Sequence[str],
    graph_batch: int | None,
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

    throttled, grown: as `bench.machines` says; network: what the last test of this gang found slow, '' for nothing
    """
    found = [*transport]
    if duration_s < SHORT_S:
        found.insert(0, f"the run took {duration_s:.1f} s: so short a run is not the same twice; raise --prompts")
    found += [remark for remark in remarks if "tuned" in remark]
    if graph_batch is not None and graph_batch < load.concurrency:
        found.append(
            f"CUDA graphs are captured up to a batch size of {graph_batch}, but {load.concurrency} requests run at once"
        )
    found += [*throttled, *grown]
    if network:
        found.append(f"the last network test: {network}")
    if wrong is not None:
        found.append(f"the figures are closer to {wrong.name} than to correct wiring ({wrong.source})")
    return tuple(found)
