"""`sweep`'s words: what is refused before anything is looked at, the table, the document and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sweep.made import record, result

from orchestrator.cli.main import main
from orchestrator.model.measured import CandidateState, SweepRecord
from orchestrator.protocol.errors import InputError
from orchestrator.sweep.steps.plans import PlannedSweep, SweepOptions

KEPT = record(
    result("tp32", {1: 50.0, 4: 100.0}, kv_tokens=201723, start_s=300.0),
    result("pp4,tp8", {1: 40.0, 4: 190.0}),
    result("tp32+kv=fp8", state=CandidateState.FAILED, cause="CUDA out of memory"),
    kept="before",
)
NOTHING = record(result("tp32", state=CandidateState.FAILED, cause="no memory"))
CUT = record(result("tp32", cause="cut by --budget"))
WORDS = ("sweep", "--model", "m")


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the steps are given, and what they give: `record`."""
    given: dict[str, Any] = {"record": KEPT}

    def planned(_: Any, __: Any, options: SweepOptions) -> PlannedSweep:
        given["options"] = options
        results = (result("tp32"), result("pp4,tp8"))
        return PlannedSweep(record(*results), {"tp32": 3600.0, "pp4,tp8": 1800.0})

    def sweep(*_: Any) -> SweepRecord:
        if isinstance(given["record"], BaseException):
            raise given["record"]
        found: SweepRecord = given["record"]
        return found

    commands, steps = "orchestrator.sweep.commands.sweep", "orchestrator.sweep.steps"
    monkeypatch.setattr(f"{commands}.open_cluster", lambda *_: None)
    monkeypatch.setattr(f"{commands}.the_one_gang", lambda *_, **__: None)
    monkeypatch.setattr(f"{steps}.plans.planned", planned)
    monkeypatch.setattr(f"{steps}.sweep.sweep", sweep)
    return given


def test_the_table_the_best_and_the_causes(swept: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    first = next(line for line in lines if line.startswith("tp32 "))
    assert "201,723" in first and "300 s" in first and "*50.0 ± 2 %" in first and "*100.0" not in first
    assert any(line.startswith("pp4,tp8") and "*190.0" in line for line in lines)
    assert "tp32+kv=fp8: failed: CUDA out of memory" in lines and "kept: before" in lines
    assert "tp32: about 1:00:00" in said.err and "2 candidates to measure, about 1:30:00 in all" in said.err


def test_the_document_and_the_page(swept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--json", "--html", str(tmp_path / "sweep.html")]) == 0
    document = json.loads(capsys.readouterr().out)["sweep"]
    assert (document["best"], document["kept"]) == ({"1": "tp32", "4": "pp4,tp8"}, "before")
    assert "CUDA out of memory" in (tmp_path / "sweep.html").read_text()
    assert main([*WORDS, "--html", str(tmp_path / "no" / "sweep.html")]) == 2


@pytest.mark.parametrize(
    ("found", "words", "code"),
    [
        (KEPT, (), 0),
        (NOTHING, (), 5),
        (NOTHING, ("--budget", "6h"), 5),
        (CUT, ("--budget", "0s"), 0),
        (NOTHING, ("--dry-run",), 0),
        (KeyboardInterrupt(), (), 130),
        (InputError("it runs", where="x", fix="x"), (), 2),
    ],
)
def test_exit_codes(swept: dict[str, Any], found: Any, words: tuple[str, ...], code: int) -> None:
    swept["record"] = found
    assert main([*WORDS, *words]) == code


def test_an_interruption_says_how_to_go_on(swept: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    swept["record"] = KeyboardInterrupt()
    main([*WORDS])
    assert "same command to go on" in capsys.readouterr().err


def test_options(swept: dict[str, Any]) -> None:
    words = (
        *("--model", "n", "--layout", "pp4,tp8", "--layout", "node-stages"),
        *("--vary", "kv=auto,fp8", "--vary", "attn-dp=1,4", "--load", "32,1,32"),
        *("--budget", "6h", "--keep", "best", "--replace", "--accept", "X"),
    )
    assert main([*WORDS, *words]) == 0
    options = swept["options"]
    assert options.models == ("m", "n") and options.layouts == ({"pp": 4, "tp": 8}, {"layout": "node-stages"})
    assert [(each.name, each.values) for each in options.vary] == [("kv", ("auto", "fp8")), ("attn-dp", ("1", "4"))]
    assert (options.requests, options.budget_s, options.keep_best) == ((1, 32), 21600.0, True)
    assert options.replaces and options.accept == ("X",) and not options.again


@pytest.mark.parametrize(
    "words", [("--vary", "kv"), ("--vary", "speed=1,2"), ("--load", "0"), ("--keep", "none"), ("--load", "")]
)
def test_bad_words(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words]) == 2
    assert "error" in capsys.readouterr().err
