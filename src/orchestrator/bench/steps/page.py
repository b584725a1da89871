"""The page of `bench --html`: curves and figures of recorded runs beside what others have measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.bench import chart as charts
from orchestrator.bench.chart import Chart, Point, Series
from orchestrator.bench.steps.bench import expectations
from orchestrator.bench.verdict import applying, held_against, judge
from orchestrator.loading.resources import templates
from orchestrator.model.benchmark import FIGURES, ExpectedSpeeds, Load
from orchestrator.model.errors import InputError
from orchestrator.records.documents import write_whole
from orchestrator.rendering import report_page
from orchestrator.topology.speed import BATCHES, Traffic, decode_speed

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
_FIGURE = {one.name: one for one in FIGURES}
_LOAD_KEYS = ("concurrency", "input", "output", "prompts", "rate")


def refuse_unwritable(path: Path) -> None:
    """Before minutes are measured for it. Raises InputError."""
    if not path.parent.is_dir():
        raise InputError("this directory does not exist", where=str(path.parent), fix="create it, or name another file")


def write_page(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raises InputError where there is no run, or the file can't be written."""
    if not records:
        raise InputError("no benchmark is recorded", where="bench --html", fix="measure one: l40s-deploy bench")
    write_whole(path, bench_html(page_of(records)))


def bench_html(page: Mapping[str, Any]) -> str:
    """The page as text. page: of `page_of`"""
    style = templates("page.css", "curves.css", "dark.css")
    return report_page(page, templates("curves.html.j2", "bench.html.j2"), style)


def newest_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`page_of` for the newest run and those of its case (model, stack, layout, machines, prompts); {} where there is
    none. records: oldest first"""
    return page_of([one for one in records if _case(one) == _case(records[-1])]) if records else {}


def page_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the template draws."""
    cases = tuple(dict.fromkeys(map(_case, records)))
    known = {model: expectations(model) for model in dict.fromkeys(str(one["model"]) for one in records)}
    titles = [one for one in FIGURES if any(one.name in record["serving"] for record in records)]
    return {
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M %Z"),
        "cases": cases,
        "stand_in": any(record["stand_in"] for record in records),
        "width": charts.WIDTH,
        "height": charts.HEIGHT,
        "plot": (charts.LEFT, charts.TOP, charts.WIDTH - charts.RIGHT, charts.HEIGHT - charts.BOTTOM),
        "charts": list(_charts(records, cases, known)),
        "figures": titles,
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
            Series(case, tuple(_points((one for one in records if _case(one) == case), across, up))) for case in cases
        ]
        if not any(one.points for one in ours):
            continue
        whole_table = up == _LOGGED and any(map(_of_the_articles, records))
        theirs = list(_decode_table() if whole_table else _entries(known, across, up))
        x_title = "requests at once" if not across else _axis(across)
        drawn = charts.chart(title, x_title, _axis(up), [*ours, *theirs])
        if drawn is not None:
            yield drawn


def _entries(known: Mapping[str, Sequence[ExpectedSpeeds]], across: str, up: str) -> Iterator[Series]:
    """What the profiles expect, a point each."""
    for entries in known.values():
        for entry in entries:
            if points := tuple(_points([_as_record(entry)], across, up)):
                yield Series(f"{entry.name}, {entry.wiring} wiring", points, expected=True)


def _points(records: Iterable[Mapping[str, Any]], across: str, up: str) -> Iterator[Point]:
    """In the order of the requests at once, so that a sweep becomes a curve."""
    for one in sorted(records, key=lambda one: int(one["load"].get("concurrency", 0))):
        load, serving = one["load"], one["serving"]
        x = serving.get(across) if across else load.get("concurrency")
        if x is None or up not in serving:
            continue
        words = f"{one['id']}: {load.get('concurrency')} at once, {x:g} and {serving[up]:g} {_FIGURE[up].unit}"
        yield Point(float(x), float(serving[up]), str(load.get("concurrency", "")) if across else "", words)


def _as_record(entry: ExpectedSpeeds) -> dict[str, Any]:
    return {"id": entry.name, "load": asdict(entry.load), "serving": dict(entry.figures)}


def _of_the_articles(record: Mapping[str, Any]) -> bool:
    return str(record["gpu"]) == "NVIDIA L40S" and str(record["layout"]) == "TP32"


def _decode_table() -> Iterator[Series]:
    """The articles' own, read from the engine's log: channel INT8 by 0.4.4 at TP32 on 4 x 8 L40S."""
    for traffic, wiring in ((Traffic.RAILS, "right"), (Traffic.TCP, "wrong")):
        speeds = [decode_speed(traffic, batch) for batch in BATCHES]
        points = tuple(Point(float(one.batch), one.tokens_per_s, "", one.basis) for one in speeds)
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
