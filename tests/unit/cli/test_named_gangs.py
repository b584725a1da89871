"""What a typed command is about: which gangs it stops (those that are named, all where that is said, never by silence),
which cluster, for how long, and the unit that repeats it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import unconnected

from orchestrator.cli.main import main, parser_of
from orchestrator.cli.options import seconds
from orchestrator.gang.commands import down, restart, rollback
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.restart import RestartResult
from orchestrator.gang.steps.restart_sequence import ROLLING
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.protocol.errors import Exit

ONE = "all: {children: {gangs: {children: {g0: {hosts: {a: {ansible_host: 192.0.2.1}}}}}}}\n"
TWO = ONE.replace("}}}}}}}", "}}}, g1: {hosts: {b: {ansible_host: 192.0.2.2}}}}}}}")
BOTH = "g0, g1"

TYPED = [
    # words, a router serves both, what is done to whom; '' for refused
    ("down", False, ""),
    ("down --now", True, ""),
    ("down --dry-run", False, ""),
    ("down --all", False, "down "),
    ("down g1", False, "down g1"),
    ("down g0 g1 --now", False, "down g0 g1"),
    ("down --now g0 g1", False, "down g0 g1"),
    ("rollback", True, ""),
    ("rollback --all", False, "rollback "),
    ("rollback g0", False, "rollback g0"),
    ("restart", False, ""),
    ("restart", True, "roll "),
    ("restart --all", True, "roll "),
    ("restart --all", False, "restart "),
    ("restart g0", False, "restart g0"),
    ("restart g0", True, "roll g0"),
    ("restart g0 g1", False, "restart g0 g1"),
    ("restart --now", True, ""),
    ("restart --now g0", True, "restart g0"),
    ("restart --all-at-once", True, "restart "),
    ("restart --all-at-once", False, "restart "),
    ("restart --rolling", True, "roll "),
    ("restart --maintenance", True, "maintain "),
    ("restart --maintenance", False, ""),
    ("restart --maintenance --all", False, "maintain "),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / "labs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the steps were asked for."""
    asked: list[str] = []
    names = {id(MAINTENANCE): "maintain", id(ROLLBACK): "rollback", id(ROLLING): "roll"}

    def note(name: str, answer: object) -> Any:
        def called(_: object, request: Any, *__: object, **___: object) -> object:
            asked.append(" ".join((names.get(id(getattr(request, "verb", None)), name), *sorted(request.gangs))))
            return answer

        return called

    monkeypatch.setattr(down, "down", note("down", ()))
    monkeypatch.setattr(restart, "restart", note("restart", RestartResult(views=(), seconds=0.0)))
    for module in (down, rollback, restart):
        monkeypatch.setattr(module, "connected", unconnected)
    monkeypatch.setattr(restart, "answers", lambda *_: [])
    return asked


@pytest.fixture
def type_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], int]:
    """Type words, with this inventory."""

    def run(words: str, inventory: str) -> int:
        path = place / "hosts.yml"
        path.write_text(inventory)
        verb, *rest = words.split()
        typed = [verb, "-i", str(path), *rest]
        monkeypatch.setattr(sys, "argv", ["l40s-deploy", *typed])
        return main(typed)

    return run


@pytest.mark.parametrize(("words", "router", "does"), TYPED, ids=[f"{words} {router}" for words, router, _ in TYPED])
def test_of_several_gangs(
    done: list[str],
    type_it: Callable[[str, str], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    router: bool,
    does: str,
) -> None:
    monkeypatch.setattr(restart, "can_roll", lambda *_: router)
    code = type_it(words, TWO)
    said = capsys.readouterr().err
    if does:
        assert (code, [one.strip() for one in done]) == (Exit.DONE, [does.strip()]), said
        return
    verb, *rest = words.split()
    command = " ".join(["l40s-deploy", verb, "-i", str(Path("hosts.yml").absolute()), *rest])
    assert (code, done) == (Exit.INPUT, [])
    assert f"this would stop 2 gangs, and none is named: {BOTH}" in said
    assert f"`{command} g0`; or all of them: `{command} --all`" in said


@pytest.mark.parametrize("verb", ["down", "restart", "rollback", "restart --maintenance"])
def test_the_only_gang_needs_no_name(done: list[str], type_it: Callable[[str, str], int], verb: str) -> None:
    assert type_it(verb, ONE) == Exit.DONE
    assert len(done) == 1


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


@pytest.mark.parametrize(
    ("text", "wanted"), [("90", 90), ("5s", 5), ("10m", 600), ("2h", 7200), ("0.5", 0.5), ("1.5h", 5400)]
)
def test_a_duration(text: str, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "-1", "5 m", "1d", "inf", "nan", "1e9", "m"])
def test_anything_else_is_refused_in_words(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="wanted a duration such as 90, 5s, 10m or 2h"):
        seconds(text)
    for words in (["restart", f"--timeout={text}"], ["logs", "-f", f"--since={text}"]):
        assert main(words) == 2
        assert "wanted a duration" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("exporter", "--listen", "10.0.0.5:9941", "g0"),
        ("doctor", "--watch", "90s", "--accept", "LIMITS@a", "--node", "a"),
        ("guard", "--metrics", "9941", "--limit", "3"),
    ],
    ids=lambda words: words[0],
)
def test_the_unit_runs_what_was_typed(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.cli.units.unit_folder", lambda: tmp_path / "units")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(ONE)
    assert main([*words, "-i", str(hosts), "--install", "--json"]) == 0
    told = capsys.readouterr()
    text = Path(json.loads(told.out)["unit"]).read_text()
    assert "systemctl" in told.err
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    runs = re.findall(r'"([^"]*)"', line)[3:]
    parser, _ = parser_of(words[0])
    wanted, got = parser.parse_args([*words, "-i", str(hosts)]), parser.parse_args(runs)
    assert vars(got) == vars(wanted)
