"""`bench`'s output: the list, a sweep's lines, and which options exclude each other."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bench.steps.bench import BenchedGang
from orchestrator.bench.store import write_bench
from orchestrator.bench.text import own_text
from orchestrator.bench.verdict import judge, overall
from orchestrator.cli.main import main
from orchestrator.model.profile import Load


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def benched(count: int, speed: float) -> BenchedGang:
    judged = judge({"output_tok_s": speed}, {"output_tok_s": 100.0})
    record: dict[str, Any] = {
        "id": f"run-{count}", "at": 1.0, "gang": "gang0", "plan_id": "p1", "model": "m", "stack": "s",
        "layout": "TP32", "gpu": "NVIDIA L40S", "nodes": ["node0"], "dataset": "own text", "stand_in": False,
        "load": asdict(Load(concurrency=count, prompts=count)), "verdict": overall(judged).value,
        "serving": {"output_tok_s": speed, "decode_tok_s": speed}, "runs": [],
        "machines": {}, "findings": [], "tuned": {},
        "raw_file": None, "against": "x", "causes": ["traffic on TCP"] if speed < 80 else [],
    }  # fmt: skip
    return BenchedGang(
        record=record, file=f"/state/run-{count}.json", judged=judged, verdict=overall(judged), expected=None
    )


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Output of a sweep whose second run is slow."""
    (tmp_path / "hosts.yml").write_text("all: {children: {gangs: {children: {gang0: {hosts: {node0: {}}}}}}}\n")
    monkeypatch.setattr("orchestrator.bench.commands.bench.connected_cluster", lambda *_: nullcontext())
    monkeypatch.setattr("orchestrator.bench.steps.bench.at_loads", lambda *_: (benched(1, 99.0), benched(4, 50.0)))
    return ["bench", "--load", "1,4"]


def test_a_sweep_says_the_verdict_the_figures_and_the_causes_of_each_run(
    swept: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*swept, "--gate"]) == 7
    out = capsys.readouterr().out
    assert out.startswith("m by s at TP32"), "the table for a report comes first"
    first, second = out.split("1 at once:")[1].split("4 at once:")
    assert "verdict: as expected" in first and "99 %" in first and "likely" not in first
    assert "verdict: BENCH-SLOW" in second and "50 %" in second and "likely: traffic on TCP" in second


def test_the_former_name_of_load_works_and_says_the_new_one(
    swept: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(swept) == 0
    now = capsys.readouterr()
    assert main(["bench", "--sweep", "1,4"]) == 0
    then = capsys.readouterr()
    assert then.out == now.out and "--load" not in now.err and "--sweep is called --load now" in then.err


def test_a_sweeps_document_has_the_keys_of_a_run(swept: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*swept, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {key: said[key] for key in ("gang", "plan_id", "stack", "layout", "dataset", "expected")} == {
        "gang": "gang0", "plan_id": "p1", "stack": "s", "layout": "TP32", "dataset": "own text", "expected": None,
    }  # fmt: skip
    assert (said["verdict"], said["causes"], said["serving"]["output_tok_s"]) == (
        "BENCH-SLOW",
        ["traffic on TCP"],
        50.0,
    )
    assert [row["requests"] for row in said["decode"]] == [1, 4]
    assert [run["verdict"] for run in said["runs"]] == ["as expected", "BENCH-SLOW"]


def test_recorded_runs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    write_bench(benched(4, 50.0).record)
    assert main(["bench", "list", "--json"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)["runs"]] == ["run-4"]


def test_two_forms_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write_bench(benched(4, 50.0).record)
    assert main(["bench", "--markdown", "run-4", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "--markdown" in json.loads(said.err.splitlines()[-1])["error"]["what"]


@pytest.mark.parametrize(
    ("sweep", "conversations", "refused"), [("1,4", 10, False), ("512", 300, True), ("4,512", 512, False)]
)
def test_a_sweeps_data_set_must_do_for_its_largest_run(
    sweep: str, conversations: int, refused: bool, swept: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.json").write_text(own_text(conversations))
    code = main(["bench", "--load", sweep, "--dataset", str(tmp_path / "own.json")])
    assert code == (2 if refused else 0)
    assert not refused or "wanted 512" in capsys.readouterr().err
