"""Recorded runs as a table: the figures, with the profile's measured speeds below."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.bench.steps.bench import markdown
from orchestrator.model.benchmark import Load


def record(**changes: Any) -> dict[str, Any]:
    return {
        "id": "20260714-101500-gang0",
        "model": "DeepSeek-R1-Channel-INT8",
        "stack": "sglang-0.4.4-l40s",
        "layout": "TP32",
        "gpu": "NVIDIA L40S",
        "nodes": ["node0", "node1"],
        "dataset": "a|b.json",
        "stand_in": False,
        "load": asdict(Load(concurrency=4, prompts=4)),
        "serving": {"output_tok_s": 123.456, "decode_tok_s": 150.0},
        "verdict": "not judged",
        **changes,
    }


def test_each_run_is_a_row_and_the_articles_stand_below() -> None:
    lines = markdown([record(), record(id="two")]).splitlines()
    assert lines[0] == (
        "DeepSeek-R1-Channel-INT8 by sglang-0.4.4-l40s at TP32 on NVIDIA L40S, 2 nodes; prompts: a|b.json"
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert len({len(row) for row in rows}) == 1
    assert rows[2][:4] == ["20260714-101500-gang0", "4", "200", "200"]
    assert "123.46" in rows[2] and "150.00" in rows[2]
    assert any(row[0].startswith("articles-int8:") and "584.64" in row for row in rows)


def test_a_stand_in_says_so() -> None:
    assert "say nothing about a GPU" in markdown([record(stand_in=True, model="unknown")])
