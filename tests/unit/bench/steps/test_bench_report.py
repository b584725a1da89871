"""Recorded runs as a table, and as a page of curves and figures: self-contained, and no text of a record is active."""

from __future__ import annotations

import html
import re
import shutil
import struct
import subprocess
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.bench.steps.bench_report import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Point,
    Series,
    chart,
    markdown,
    page_of,
    write_page,
)
from orchestrator.model.profile import Load
from orchestrator.protocol.errors import InputError

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "br", "img", "link", "input", "hr"}


def record(concurrency: int = 128, speed: float = 500.0, **changes: Any) -> dict[str, Any]:
    load = Load() if concurrency == 128 else Load(concurrency=concurrency, prompts=concurrency, rate=1_000_000)
    return {
        "id": f"20260714-101500-gang0-{concurrency}",
        "model": "DeepSeek-R1-Channel-INT8",
        "stack": "sglang-0.4.4-l40s",
        "layout": "TP32",
        "gpu": "NVIDIA L40S",
        "nodes": ["node0", "node1", "node2", "node3"],
        "dataset": "own text",
        "stand_in": False,
        "load": asdict(load),
        "serving": {
            "output_tok_s": speed,
            "decode_tok_s": speed * 1.1,
            "decode_log_tok_s": speed * 1.2,
            "itl_median_ms": 20.0 + concurrency,
            "ttft_median_ms": 300.0 + concurrency,
        },
        "verdict": "BENCH-SLOW",
        "against": "",
        "causes": ["node1: GPU 3 is throttled"],
        "plan_id": "p-1",
        "packages": {"sglang": "0.4.4.post3"},
        **changes,
    }


SWEEP = tuple(record(count, speed) for count, speed in ((1, 45.0), (4, 140.0), (32, 430.0), (128, 400.0)))


class Page(HTMLParser):
    """The page as a browser parses it: elements, whether all are closed, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.seen if name == tag and kind in (attrs.get("class") or "")]


def written(tmp_path: Path, *records: dict[str, Any]) -> Page:
    write_page(records, tmp_path / "bench.html")
    page = Page((tmp_path / "bench.html").read_text("utf-8"))
    assert not page.open
    return page


def test_a_sweep_is_a_curve_beside_the_articles(tmp_path: Path) -> None:
    page = written(tmp_path, *SWEEP)
    names = [each["aria-label"] or "" for each in page.all("svg") if "aria-label" in each]
    assert [name.partition(":")[0] for name in names] == [
        "Throughput against latency",
        "Throughput against the wait for the first token",
        "Throughput by requests at once",
        "Decoding alone, as the client saw it, by requests at once",
        "Decoding alone, by the leader's log, by requests at once",
    ]
    ours = [each["points"] for each in page.all("polyline") if each["class"] == "line"]
    assert [len((points or "").split()) for points in ours] == [4, 4, 4, 4, 4]
    assert len(page.all("polyline", "theirs")) == 2  # the articles' decode tables, for the correct and the wrong wiring
    for words in ("articles-int8, right wiring", "584.64", "391.47", "measured by others", "GPU 3 is throttled"):
        assert words in page.text
    assert "20260714-101500-gang0-128 beside articles-int8" in page.text
    assert "68 %" in page.text  # 400 of 584.64


def test_the_articles_log_figures_stand_beside_our_log_figures_only() -> None:
    by_client, by_log = page_of(SWEEP)["charts"][-2:]
    assert not [line.name for line in by_client.lines if line.expected]
    assert [line.name for line in by_log.lines if line.expected] == [
        f"articles' decode table, INT8, {wiring} wiring" for wiring in ("right", "wrong")
    ]
    (ours,) = (line for line in by_log.lines if not line.expected)
    assert "1 at once, 1 and 54 tok/s" in ours.dots[0].title, "1.2 x 45, not the client's 1.1 x 45"


def test_runs_of_two_cases_are_two_curves(tmp_path: Path) -> None:
    other = [record(count, 300.0, layout="PP4", id=f"pp-{count}") for count in (1, 4)]
    drawn = page_of([*SWEEP, *other])["charts"][0]
    assert [len(line.dots) for line in drawn.lines if not line.expected] == [4, 2]
    assert len({line.number for line in drawn.lines}) == len(drawn.lines)


def test_a_page_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    written(tmp_path, *SWEEP)
    page = (tmp_path / "bench.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|url\(|@import|<script|<link""", page)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x>', "\x1b[2J\udc80\0", "{{ 7 * 7 }}"])
def test_text_of_a_record_is_text(text: str, tmp_path: Path) -> None:
    page = written(
        tmp_path,
        record(model=text, gpu=text, dataset=text, verdict=text, causes=[text], packages={text: text}, against=text),
    )
    raw = (tmp_path / "bench.html").read_text("utf-8")
    assert not page.all("script") and not page.all("img") and "\x1b" not in raw and "\0" not in raw
    assert "7 * 7" not in text or html.unescape(raw).count(text) > 3


def test_a_stand_in_says_so_and_a_run_without_figures_is_a_row(tmp_path: Path) -> None:
    page = written(tmp_path, record(model="unknown", stand_in=True, serving={}))
    assert "say nothing about a GPU" in page.text
    assert not [each for each in page.all("svg") if "aria-label" in each]


def test_a_page_of_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no benchmark is recorded"):
        write_page([], tmp_path / "bench.html")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_it_without_a_network(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    written(tmp_path, *SWEEP)
    common = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1120,1400",
              f"--user-data-dir={tmp_path}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]  # fmt: skip
    address = (tmp_path / "bench.html").as_uri()
    subprocess.run([*common, f"--screenshot={tmp_path}/page.png", address], check=True, capture_output=True, timeout=90)
    picture = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1120, 1400)
    assert len(picture) > 60_000  # an empty page of this size is some 10 kB


POSITIVE = st.floats(min_value=1e-6, max_value=1e12)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=8))
def test_every_point_is_inside_and_the_axes_begin_at_zero(values: list[tuple[float, float]]) -> None:
    drawn = chart("t", "x", "y", [Series("one", tuple(Point(x, y, "", "") for x, y in values))])
    assert (drawn.x_ticks[0], drawn.y_ticks[0]) == ((LEFT, "0"), (HEIGHT - BOTTOM, "0"))
    assert drawn.x_ticks[-1][0] == WIDTH - RIGHT and drawn.y_ticks[-1][0] == TOP
    assert 2 <= len(drawn.x_ticks) <= 7 and 2 <= len(drawn.y_ticks) <= 7
    for dot in drawn.lines[0].dots:
        assert LEFT <= dot.x <= WIDTH - RIGHT and TOP <= dot.y <= HEIGHT - BOTTOM


@pytest.mark.parametrize(
    ("most", "texts"),
    [(778.0, ["0", "200", "400", "600", "800"]), (0.0, ["0", "1"]), (5.0, ["0", "1", "2", "3", "4", "5"])],
)
def test_ticks_are_round(most: float, texts: list[str]) -> None:
    drawn = chart("t", "x", "y", [Series("one", (Point(1.0, most, "", ""),))])
    assert [text for _, text in drawn.y_ticks] == texts


def test_an_empty_series_keeps_its_colour() -> None:
    drawn = chart("t", "x", "y", [Series("none", ()), Series("two", (Point(1, 1, "", ""),), expected=True)])
    assert [(line.name, line.number, line.expected) for line in drawn.lines] == [("two", 1, True)]


def test_each_run_is_a_row_and_the_articles_stand_below() -> None:
    lines = markdown([record(4, 123.456, dataset="a|b.json"), record(id="two")]).splitlines()
    assert lines[0] == (
        "DeepSeek-R1-Channel-INT8 by sglang-0.4.4-l40s at TP32 on NVIDIA L40S, 4 nodes; prompts: a|b.json"
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert len({len(row) for row in rows}) == 1
    assert rows[2][:4] == ["20260714-101500-gang0-4", "4", "200", "200"]
    assert "123.46" in rows[2] and "135.80" in rows[2]
    assert any(row[0].startswith("articles-int8:") and "584.64" in row for row in rows)


def test_a_table_of_a_stand_in_says_so() -> None:
    assert "say nothing about a GPU" in markdown([record(stand_in=True, model="unknown")])
