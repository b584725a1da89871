"""A running lab is used if no inventory is named: a command that changes something first says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.main import main

CHANGING = (
    "up --model DeepSeek-V3-0324-Block64x64",
    "down",
    "restart",
    "restart --rolling",
    "up",
    "rollback",
    "router up",
    "router down",
    "guard --once",
    "lock --release",
    "prepare",
    "nettest",
    "tuning run --model DeepSeek-V3-0324-Block64x64 out.tar",
    "tuning push pack.tar",
    "checkpoint download deepseek-ai/DeepSeek-V3-0324",
    "checkpoint reblock --node node0 /workspace/a /workspace/b",
    "checkpoint push /workspace/a",
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / "labs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lab(place: Path, name: str) -> None:
    """Its inventory has no node: the command ends right after naming the cluster it uses."""
    inventory = place / "labs" / name / "inventory.yml"
    inventory.parent.mkdir(parents=True)
    inventory.write_text("all: {}\n")


@pytest.mark.parametrize("typed", CHANGING)
def test_the_first_line_names_the_lab(typed: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab(place, "rehearsal")
    assert main(typed.split()) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("cluster: ") and "the running lab 'rehearsal', because no inventory was given" in first
    assert any(line.startswith("error: ") for line in rest)


@pytest.mark.parametrize("typed", CHANGING)
def test_of_several_labs_none_is_taken(typed: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab(place, "one")
    lab(place, "two")
    assert main(typed.split()) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("error: ") and "several labs are running" in first
