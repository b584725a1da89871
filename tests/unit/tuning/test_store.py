"""Results of tuning runs: appended, read again after a kill."""

from __future__ import annotations

from pathlib import Path

from orchestrator.tuning.store import forget_results, keep_result, kept_results


def test_results_are_found_again_and_a_torn_line_is_none(tmp_path: Path) -> None:
    assert kept_results("k", root=tmp_path) == {}
    keep_result("k", {"job": "a", "us": 2.0}, root=tmp_path)
    with (tmp_path / "k.jsonl").open("a") as file:
        file.write('{"job": "b", "us"')
    keep_result("k", {"job": "c", "us": 3.0}, root=tmp_path)
    keep_result("k", {"job": "a", "us": 1.0}, root=tmp_path)
    assert {job: result["us"] for job, result in kept_results("k", root=tmp_path).items()} == {"a": 1.0, "c": 3.0}
    forget_results("k", root=tmp_path)
    assert kept_results("k", root=tmp_path) == {}
