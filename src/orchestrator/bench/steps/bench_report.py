"""Recorded runs for people and programs: documents, a table for a report, and the page of `bench --html`, with curves
and figures beside what others have measured."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.bench.steps.bench import BenchedGang, expectations
from orchestrator.bench.verdict import JudgedFigure, applying, gravest, held_against, judge
from orchestrator.loading.resources import templates
from orchestrator.model.profile import FIGURES, ExpectedSpeeds, Load
from orchestrator.protocol.errors import InputError
from orchestrator.records.documents import expect_writable, write_whole
from orchestrator.rendering import report_page
from orchestrator.topology.speed import BATCHES, Traffic, decode_speed

TABLE = tuple(
    figure
    for figure in FIGURES
    if figure.name
    in ("output_tok_s", "decode_tok_s", "decode_log_tok_s", "ttft_median_ms", "itl_median_ms", "e2e_median_ms")
)
"""What a report shows of a run."""
_LOGGED = "decode_log_tok_s"
"""What the articles' decode table was read from, too."""
_DRAWN = (
    ("Throughput against latency", "itl_median_ms", "output_tok_s"),
    ("Throughput against the wait for the first token", "ttft_median_ms", "output_tok_s"),
    ("Throughput by requests at once", "", "output_tok_s"),
    ("Decoding alone, as the client saw it, by requests at once", "", "decode_tok_s"),
    ("Decoding alone, by the leader's log, by requests at once", "", _LOGGED),
)
"""Title, figure across ('' for requests at once), figure up."""
_FIGURE = {figure.name: figure for figure in FIGURES}
_CASE_KEYS = ("gang", "plan_id", "model", "stack", "layout", "gpu", "dataset")
_LOAD_KEYS = ("concurrency", "input", "output", "prompts", "rate")


def bench_json(done: BenchedGang) -> dict[str, Any]:
    """The document of `bench --json`."""
    record, entry = done.record, done.expected
    return {
        **{key: record[key] for key in ("id", *_CASE_KEYS, "load", "stand_in", "serving", "runs")},
        "decode": list(_decode(record)),
        "expected": {"name": entry.name, "source": entry.source, "serving": dict(entry.figures)} if entry else None,
        "figures": figures_json(done.judged),
        **{key: record[key] for key in ("against", "verdict", "causes", "machines", "findings", "tuned", "raw_file")},
        "file": done.file,
    }


def _decode(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row per source of decode-only figures."""
    requests = record["load"]["concurrency"]
    if "decode_tok_s" in record["serving"]:
        yield {
            "requests": requests,
            "tok_s": record["serving"]["decode_tok_s"],
            "tokens": record["load"]["output"],
            "source": "client: between the last first token and the first end",
        }
    if log := record.get("decode_log"):
        yield {
            "requests": requests,
            **log,
            "source": "leader's log: its line nearest to the articles' tokens",
        }


def loads_json(done: Sequence[BenchedGang]) -> dict[str, Any]:
    """The document of `bench --load --json`: the run with the most requests at once as `bench --json` has it, with
    the decode rows and the causes of all runs and the gravest of their verdicts; each run is among `runs`."""
    runs = [bench_json(gang) for gang in done]
    most = max(runs, key=lambda run: int(run["load"]["concurrency"]))
    return {
        **{key: most[key] for key in (*_CASE_KEYS, "stand_in", "serving", "expected")},
        "decode": [row for run in runs for row in run["decode"]],
        "verdict": gravest([gang.verdict for gang in done]).value,
        "causes": list(dict.fromkeys(cause for run in runs for cause in run["causes"])),
        "runs": runs,
    }


def figures_json(judged: Iterable[JudgedFigure]) -> list[dict[str, Any]]:
    """Each figure with the one it was compared with."""
    return [
        {
            "name": figure.figure.name,
            "found": figure.found,
            "expected": figure.expected,
            "speed": round(figure.speed, 4),
            "noise": round(figure.noise, 4),
            "decides": figure.figure.decides,
            "verdict": figure.verdict.value,
        }
        for figure in judged
    ]


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """Recorded runs as a table for a report, beside the speeds that the model's profile expects."""
    first = records[0]
    head = (
        f"{first['model']} by {first['stack']} at {first['layout']} on {first['gpu']}, "
        f"{len(first['nodes'])} nodes; prompts: {first['dataset']}"
    )
    if any(record["stand_in"] for record in records):
        head += ". Measured on the lab's stand-in: these figures say nothing about a GPU"
    titles = ("run", "at once", "in", "out", *(f"{figure.title}, {figure.unit}" for figure in TABLE), "verdict")
    rows = [_cells(record, str(record["id"]), str(record.get("verdict", ""))) for record in records]
    rows += [
        _cells(_as_record(entry), f"{entry.name}: {entry.source}", f"{entry.wiring} wiring")
        for entry in expectations(first["model"])
    ]
    table = (titles, ("---",) * len(titles), *rows)
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in table)
    return "\n".join([head, "", *lines, ""])


def _cells(record: Mapping[str, Any], name: str, verdict: str) -> tuple[str, ...]:
    load, figures = record["load"], record["serving"]
    loads = (str(load.get(key, "")) for key in ("concurrency", "input", "output"))
    return (
        name,
        *loads,
        *(f"{figures[figure.name]:.2f}" if figure.name in figures else "" for figure in TABLE),
        verdict,
    )


def _as_record(entry: ExpectedSpeeds) -> dict[str, Any]:
    return {"id": entry.name, "load": asdict(entry.load), "serving": dict(entry.figures)}


def refuse_unwritable(path: Path) -> None:
    """Before minutes are measured for it. Raises InputError."""
    expect_writable(path, "name another file with --html")


def write_page(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raises InputError where there is no run, or the file can't be written."""
    if not records:
        raise InputError("no benchmark is recorded", where="bench --html", fix="measure one: l40s-deploy bench")
    write_whole(path, bench_html(page_of(records)))


def bench_html(page: Mapping[str, Any]) -> str:
    """The page as text. page: of `page_of`"""
    return report_page(
        page, templates("curves.html.j2", "bench.html.j2"), templates("page.css", "curves.css", "dark.css")
    )


def newest_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`page_of` for the newest run and those of its case (model, stack, layout, machines, prompts); {} where there is
    none. records: oldest first"""
    return page_of([record for record in records if _case(record) == _case(records[-1])]) if records else {}


def page_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the template draws."""
    cases = tuple(dict.fromkeys(map(_case, records)))
    known = {model: expectations(model) for model in dict.fromkeys(str(record["model"]) for record in records)}
    return {
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M %Z"),
        "cases": cases,
        "stand_in": any(record["stand_in"] for record in records),
        "width": WIDTH,
        "height": HEIGHT,
        "plot": (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM),
        "charts": list(_charts(records, cases, known)),
        "figures": [figure for figure in FIGURES if any(figure.name in record["serving"] for record in records)],
        "runs": [_run(record, known[str(record["model"])]) for record in records],
        "expected": [_entry(model, entry) for model, entries in known.items() for entry in entries],
    }


def _case(record: Mapping[str, Any]) -> str:
    nodes = len(record["nodes"]) if isinstance(record.get("nodes"), list) else 0
    where = f"{nodes} node{'' if nodes == 1 else 's'} of {record['gpu']}"
    return f"{record['model']} by {record['stack']} at {record['layout']}, {where}; prompts: {record['dataset']}"


def _charts(
    records: Sequence[Mapping[str, Any]], cases: Sequence[str], known: Mapping[str, Sequence[ExpectedSpeeds]]
) -> Iterator[Chart]:
    for title, across, up in _DRAWN:
        ours = [
            Series(case, tuple(_points((record for record in records if _case(record) == case), across, up)))
            for case in cases
        ]
        if not any(line.dots for line in ours):
            continue
        of_articles = any((str(record["gpu"]), str(record["layout"])) == ("NVIDIA L40S", "TP32") for record in records)
        theirs = _decode_table() if up == _LOGGED and of_articles else _entries(known, across, up)
        yield chart(title, _axis(across) if across else "requests at once", _axis(up), [*ours, *theirs])


def _entries(known: Mapping[str, Sequence[ExpectedSpeeds]], across: str, up: str) -> Iterator[Series]:
    """What the profiles expect, a point each."""
    for entries in known.values():
        for entry in entries:
            if points := tuple(_points([_as_record(entry)], across, up)):
                yield Series(f"{entry.name}, {entry.wiring} wiring", points, expected=True)


def _points(records: Iterable[Mapping[str, Any]], across: str, up: str) -> Iterator[Point]:
    """In the order of the requests at once, so that a sweep becomes a curve."""
    for record in sorted(records, key=lambda record: int(record["load"].get("concurrency", 0))):
        load, serving = record["load"], record["serving"]
        x = serving.get(across) if across else load.get("concurrency")
        if x is None or up not in serving:
            continue
        words = f"{record['id']}: {load.get('concurrency')} at once, {x:g} and {serving[up]:g} {_FIGURE[up].unit}"
        yield Point(float(x), float(serving[up]), str(load.get("concurrency", "")) if across else "", words)


def _decode_table() -> Iterator[Series]:
    """The articles' own, read from the engine's log: channel INT8 by 0.4.4 at TP32 on 4 x 8 L40S."""
    for traffic, wiring in ((Traffic.RAILS, "right"), (Traffic.TCP, "wrong")):
        speeds = [decode_speed(traffic, batch) for batch in BATCHES]
        points = tuple(Point(float(speed.batch), speed.tokens_per_s, "", speed.basis) for speed in speeds)
        yield Series(f"articles' decode table, INT8, {wiring} wiring", points, expected=True)


def _axis(name: str) -> str:
    figure = _FIGURE[name]
    return f"{figure.title}, {figure.unit}"


def _run(record: Mapping[str, Any], entries: Sequence[ExpectedSpeeds]) -> dict[str, Any]:
    """One row, and what it is beside the profile's entry for this very case."""
    load = record["load"]
    whole = Load(**load) if load.keys() == asdict(Load()).keys() else None
    case = {key: str(record[key]) for key in ("stack", "layout", "gpu")}
    entry = held_against(applying(entries, **case, load=whole)) if whole else None
    return {
        "id": record["id"],
        "case": _case(record),
        "load": [load.get(key, "") for key in _LOAD_KEYS],
        "serving": record["serving"],
        "verdict": record.get("verdict", ""),
        "against": record.get("against", ""),
        "causes": record.get("causes", []),
        "plan_id": record.get("plan_id", ""),
        "packages": record.get("packages", {}),
        "expected": entry.name if entry else "",
        "judged": judge(record["serving"], dict(entry.figures)) if entry else (),
    }


def _entry(model: str, entry: ExpectedSpeeds) -> dict[str, Any]:
    load = asdict(entry.load)
    return {
        "name": entry.name,
        "source": f"{model} by {entry.stack} at {entry.layout} on {entry.gpu}: {entry.source}",
        "load": [load[key] for key in _LOAD_KEYS],
        "serving": dict(entry.figures),
        "wiring": entry.wiring,
    }


WIDTH, HEIGHT = 520, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 14, 44
"""Of a drawing, in pixels, and the margins of its plot."""
_TICKS = 5
_LEAST = 1e-9
"""Of a figure that is more than nothing."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, or where it is in pixels. label: beside it; title: what pointing at it says; anchor: of its
    label, which stays inside the drawing"""

    x: float
    y: float
    label: str
    title: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Series:
    """One line. expected: somebody else's figures, drawn apart from ours; number: from 0, for its colour"""

    name: str
    dots: tuple[Point, ...]
    expected: bool = False
    number: int = 0

    @property
    def points(self) -> str:
        """As SVG's polyline wants them."""
        return " ".join(f"{dot.x},{dot.y}" for dot in self.dots)


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of WIDTH x HEIGHT, for a template. x_ticks, y_ticks: (pixel, text); lines: in pixels"""

    title: str
    x_title: str
    y_title: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Series, ...]


def chart(title: str, x_title: str, y_title: str, series: Sequence[Series]) -> Chart:
    """Both axes begin at zero, so that twice as fast looks so. series: with at least one point"""
    points = [point for line in series for point in line.dots]
    x_values, y_values = (_ticks(max(values)) for values in zip(*((point.x, point.y) for point in points), strict=True))

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / x_values[-1], 1)

    def up(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_values[-1], 1)

    def placed(point_at: Point) -> Point:
        anchor = "end" if across(point_at.x) > WIDTH - 90 else "start"
        return replace(point_at, x=across(point_at.x), y=up(point_at.y), anchor=anchor)

    return Chart(
        title=title,
        x_title=x_title,
        y_title=y_title,
        x_ticks=tuple((across(value), f"{value:g}") for value in x_values),
        y_ticks=tuple((up(value), f"{value:g}") for value in y_values),
        lines=tuple(
            replace(line, dots=tuple(map(placed, line.dots)), number=number)
            for number, line in enumerate(series)
            if line.dots
        ),
    )


def _ticks(most: float) -> tuple[float, ...]:
    """Round values from 0 to at least `most`."""
    if not math.isfinite(most) or most < _LEAST:
        return (0.0, 1.0)
    rough = most / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in _STEPS if power * each >= rough * (1 - 1e-9))
    return tuple(round(step * number, 12) for number in range(math.ceil(most / step - 1e-9) + 1))
