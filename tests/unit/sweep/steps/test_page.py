"""The page of a sweep: a curve a candidate, the best for each load, and why something is not there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.sweep.made import record, result

from orchestrator.model.measured import Candidate, CandidateState
from orchestrator.sweep.steps.page import page_of, sweep_html, write_sweep_page

CALCULATED = Candidate(id="a", model="m", layout=result("a").candidate.layout, expected={"1": 49.0})
KEPT = record(
    result("a", {1: 50.0, 4: 100.0}, candidate=CALCULATED, kv_tokens=201723, start_s=300.0),
    result("b", {1: 40.0, 4: 190.0}),
    result("c", state=CandidateState.FAILED, cause="GPU-OUT-OF-MEMORY"),
    result("d", state=CandidateState.REFUSED, cause="it needs 16 GPUs"),
    result("e"),
)


def test_curves_the_best_and_the_causes(tmp_path: Path) -> None:
    page = page_of(KEPT)
    assert [[line.name for line in chart.lines] for chart in page["charts"]] == [["a", "b"]] * 3
    assert [(one.requests, one.id) for one in page["best"]] == [(1, "a"), (4, "b")]
    write_sweep_page(KEPT, tmp_path / "sweep.html")
    text = (tmp_path / "sweep.html").read_text()
    assert text.count("<polyline") == 6 and "http" not in text, "one file, which loads nothing"
    for words in ("201,723", "GPU-OUT-OF-MEMORY", "it needs 16 GPUs", "not yet", "190.0 ± 2 % of 2"):
        assert words in text
    assert len(re.findall(r'class="n best"', text)) == 2 and "calculated at 1" in text


def test_a_sweep_without_a_point_is_a_page_too() -> None:
    text = sweep_html(page_of(record(result("a"))))
    assert "No candidate is measured." in text and "<polyline" not in text and "calculated at" not in text
