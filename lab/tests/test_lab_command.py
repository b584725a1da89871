"""`lab` as a user types it: wrong input is one message and exit code 2, and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from l40s_lab.node import inside
from orchestrator.cli.main import main


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "labs"
    monkeypatch.setenv("L40S_LAB_ROOT", str(root))
    return root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--wiring", "left"], "no wiring 'left'"),
        (["up", "--name", "../lab"], "found '../lab'"),
        (["up", "--nodes", "0"], "found 0, wanted 1 to 240"),
        (["up", "--nodes", "5", "--gangs", "2"], "5 nodes cannot be divided into 2 equal gangs"),
        (["up", "--gangs", "0"], "--gangs: found 0, wanted 1 or more"),
        (["status"], "no lab named 'lab'"),
        (["status", "--name", "A"], "found 'A'"),
        (["down", "--name", "A"], "found 'A'"),
    ],
)
def test_wrong_input_is_told_and_nothing_is_started(
    words: list[str], said: str, own_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "fix:" in err
    assert not own_root.exists()


def test_under_json_an_error_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "status", "--json"]) == 2
    assert set(json.loads(capsys.readouterr().err.splitlines()[-1])["error"]) == {"what", "where", "fix"}


def test_down_of_nothing_is_done(own_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "down"]) == 0
    assert "there is no lab 'lab'" in capsys.readouterr().err
    assert not own_root.exists()


def test_what_follows_exec_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own attributes of a command line do not replace it."""
    ran: list[object] = []

    def execute(*given: object) -> int:
        ran.extend(given)
        return 0

    monkeypatch.setattr(inside, "execute", execute)
    assert main(["lab", "exec", "node0", "--name", "x", "--", "python3", "-c", "print(1)"]) == 0
    assert ran == ["x", "node0", ["python3", "-c", "print(1)"]]
