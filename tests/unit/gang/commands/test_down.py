"""`down` as typed: exit codes, the JSON document, what could not be ended; no router that does not answer delays it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.commands import unconnected

from orchestrator.cli.main import main
from orchestrator.gang.commands import down as verb
from orchestrator.gang.serving import Serving
from orchestrator.gang.steps.down import DownRequest, StopResult
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.router.routing import Withdrawn
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.verbs import LockHolder, StopAnswer

INVENTORY = """
all: {children: {gangs: {children: {g: {hosts: {a: {ansible_host: 192.0.2.1}, b: {ansible_host: 192.0.2.2}}}}}}}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY)

    def type_it(answer: tuple[StopResult, ...], *words: str) -> tuple[int, str, str]:
        def down(_: object, request: DownRequest, *, before_stop: Callable[[], None]) -> tuple[StopResult, ...]:
            assert (request.now, request.force) == ("--now" in words, "--force" in words)
            before_stop()
            return answer

        def withdraw(_: object, gangs: tuple[str, ...], __: object) -> None:
            assert gangs == ()
            raise LOST

        monkeypatch.setattr(verb, "withdraw", withdraw)
        monkeypatch.setattr(verb, "down", down)
        code = main(["down", "-i", str(inventory), *words])
        said = capsys.readouterr()
        assert "b: no route" in said.err
        return code, said.out, said.err

    return type_it


DONE = StopResult(gang="g", node="a", was="ready", told=StopAnswer(state="stopped"))
IDLE = StopResult(gang="g", node="b", told=StopAnswer(state="absent"))


def test_what_ran_is_named(run: Run) -> None:
    assert run((DONE, IDLE))[:2] == (0, "g: stopped on a\n")
    assert run((IDLE,), "--now", "--force")[:2] == (0, "g: nothing was running\n")


def test_the_document(run: Run) -> None:
    code, out, _ = run((DONE,), "--json")
    assert code == 0
    assert json.loads(out)["nodes"] == [
        {"gang": "g", "name": "a", "state": "stopped", "was": "ready", "left_behind": [], "held": [], "error": None}
    ]


LOST = Unreachable("no route", where="b", fix="look")


@pytest.mark.parametrize(
    ("told", "code", "words"),
    [
        (LOST, 4, "b: no route"),
        (StopAnswer(state="failed", left_behind=(7, 8)), 5, "process 7, 8 does not exit"),
        (StopAnswer(state="stopped", alive=True), 5, "still stopping"),
        (StopAnswer(state="stopped", held=("GPU 3: 2.0 GiB",)), 5, "GPU 3: 2.0 GiB"),
    ],
)
def test_what_is_not_clean_is_told_and_counts(run: Run, told: StopAnswer | Unreachable, code: int, words: str) -> None:
    other = StopResult(gang="g", node="b", was="ready")
    other = replace(other, error=told) if isinstance(told, Unreachable) else replace(other, told=told)
    found, out, err = run((DONE, other))
    assert (found, words in err) == (code, True)
    assert out.startswith("g: stopped on a")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_that_it_takes_out_the_last_gang_behind_the_router_is_said_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    def down(*_: object, before_stop: Callable[[], None]) -> tuple[StopResult, ...]:
        before_stop()
        return (DONE,)

    def withdraw(_: object, __: object, announce: Callable[[Serving], None]) -> Withdrawn:
        announce({"g": ("m",)})
        assert "no gang is left behind the router that serves m: g served it alone" in capsys.readouterr().err
        return Withdrawn(last={"g": ("m",)})

    monkeypatch.setattr(verb, "down", down)
    monkeypatch.setattr(verb, "withdraw", withdraw)
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    assert main(["down", "-i", str(tmp_path / "hosts.yml"), *words]) == 0
    shown = capsys.readouterr().out
    assert not words or json.loads(shown)["last_behind_router"] == ["g"]


def test_who_changes_the_others_meanwhile_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: object, before_stop: Callable[[], None]) -> tuple[StopResult, ...]:
        before_stop()
        return (DONE,)

    rolling = LockHolder(token="t", who="bob", host="desk", pid=7, command="restart --rolling h", why="h")
    monkeypatch.setattr(verb, "down", down)
    monkeypatch.setattr(verb, "withdraw", lambda *_: Withdrawn(changing={"g": rolling}))
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    assert main(["down", "-i", str(tmp_path / "hosts.yml")]) == 0
    shown = capsys.readouterr().err
    assert "bob@desk (pid 7) changes the others behind the router that serve what g does" in shown
    assert "with `restart --rolling h`: requests fail while those are out" in shown


def test_as_names_what_the_gang_was_called_when_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[list[tuple[str, str]], tuple[str, ...]]] = []

    def down(operation: Operation, request: DownRequest, **_: object) -> tuple[StopResult, ...]:
        asked.append(([(gang.name, gang.leader.gang) for gang in operation.inventory.gangs], request.gangs))
        return ()

    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY)
    monkeypatch.setattr(verb, "down", down)
    monkeypatch.setattr(verb, "connected", unconnected)
    assert main(["down", "-i", str(inventory), "g", "--as", "old"]) == 0
    assert asked == [([("old", "old")], ("old",))]
    assert main(["down", "-i", str(inventory), "none", "--as", "old"]) == 2
    assert "no gang is called 'none'" in capsys.readouterr().err
