"""Verdicts of a gate are kept by run, and damaged ones are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.records.documents import named_file
from orchestrator.records.gates import keep_gate, kept_gate

GATE = {"verdict": "passed", "old": "aaa", "new": "bbb", "why": "", "page": ["gate of gang0: passed"]}


def test_a_verdict_is_kept_for_its_run_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert kept_gate("run-1") is None
    page = keep_gate("run-1", GATE, "<html>")
    assert Path(page).read_text() == "<html>"
    assert kept_gate("run-1") == {**GATE, "html": page} and kept_gate("run-2") is None
    document = json.loads(named_file("gates", "run-1").read_text())
    del document["page"]
    named_file("gates", "run-1").write_text(json.dumps(document))
    Path(page).unlink()
    assert kept_gate("run-1") == {**GATE, "page": [], "html": ""}, "as an older release has kept it"
    for damage in ("", "[]", "{}", '{"format": 2}', "null"):
        named_file("gates", "run-1").write_text(damage)
        assert kept_gate("run-1") is None
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert keep_gate("run-1", GATE, "<html>") == "", "it is shown all the same"
