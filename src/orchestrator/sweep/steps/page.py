"""A sweep as one HTML page: speed against latency, a curve a candidate; the best for each load; what was refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.bench.steps.bench_report import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Point, Series, chart
from orchestrator.loading.resources import templates
from orchestrator.model.measured import CandidateResult, CandidateState, LoadPoint, SweepRecord, best
from orchestrator.records.documents import write_whole
from orchestrator.rendering import report_page


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One candidate. points: by the page's loads, None where it was not measured; fastest: at which loads; calculated:
    tokens a second by the same loads"""

    id: str
    layout: str
    settings: str
    state: str
    cause: str
    kv_tokens: int | None
    start_s: float | None
    points: tuple[LoadPoint | None, ...]
    fastest: tuple[bool, ...]
    calculated: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class FastestAtLoad:
    """The best candidate for one load."""

    requests: int
    id: str
    point: LoadPoint


def write_sweep_page(record: SweepRecord, path: Path) -> None:
    """Raises InputError where the file can't be written."""
    write_whole(path, sweep_html(page_of(record)))


def sweep_html(page: Mapping[str, Any]) -> str:
    """The page as text. page: of `page_of`"""
    return report_page(
        page, templates("curves.html.j2", "sweep.html.j2"), templates("page.css", "curves.css", "dark.css")
    )


def page_of(record: SweepRecord) -> dict[str, Any]:
    """What the template draws."""
    return {
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M %Z"),
        "record": record,
        "loads": record.load.requests,
        "stand_in": any(result.stand_in for result in record.results),
        "width": WIDTH,
        "height": HEIGHT,
        "plot": (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
        "charts": list(_charts(record)),
        "best": list(_fastest(record)),
        "rows": [_row(record, result) for result in record.results],
    }


def _charts(record: SweepRecord) -> Iterator[Chart]:
    latency = _series(record, lambda point: point.itl_ms)
    if not latency:
        return
    yield chart("Speed against latency", "between tokens, median, ms", "tok/s", latency)
    first = _series(record, lambda point: point.ttft_ms)
    yield chart("Speed against the wait for the first token", "first token, median, ms", "tok/s", first)
    at_once = _series(record, lambda point: float(point.requests))
    yield chart("Speed by requests at once", "requests at once", "tok/s", at_once)


def _series(record: SweepRecord, across: Callable[[LoadPoint], float]) -> list[Series]:
    """A curve a candidate that has any point, failed later or not."""
    return [
        Series(result.candidate.id, tuple(_dot(result, point, across(point)) for point in result.points))
        for result in record.results
        if result.points
    ]


def _dot(result: CandidateResult, point: LoadPoint, across: float) -> Point:
    words = f"{result.candidate.id}: {point.requests} at once, {point.tok_s:g} tok/s, {point.itl_ms:g} ms a token"
    return Point(across, point.tok_s, str(point.requests), words)


def _fastest(record: SweepRecord) -> Iterator[FastestAtLoad]:
    for requests in record.load.requests:
        winner = best(record.results, requests)
        point = winner.point(requests) if winner is not None else None
        if winner is not None and point is not None:
            yield FastestAtLoad(requests, winner.candidate.id, point)


def _row(record: SweepRecord, result: CandidateResult) -> SweepRow:
    candidate, loads = result.candidate, record.load.requests
    waits = "not yet" if result.state is CandidateState.LEFT else ""
    return SweepRow(
        id=candidate.id,
        layout=str(candidate.layout),
        settings=", ".join(f"{name}={value}" for name, value in candidate.settings.items()),
        state=result.state.value,
        cause=result.cause or waits,
        kv_tokens=result.kv_tokens,
        start_s=result.start_s,
        points=tuple(result.point(load) for load in loads),
        fastest=tuple(best(record.results, load) is result for load in loads),
        calculated=tuple(candidate.expected.get(str(load)) for load in loads),
    )
