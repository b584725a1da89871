"""Which gangs a verb means that stops them: those that are named, all of them where that is said, never by silence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.gang.commands import down, restart, rollback
from orchestrator.gang.commands.checked import Checked
from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.restart import ROLLING, RestartResult
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.model.errors import Exit

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


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the steps were asked for."""
    asked: list[str] = []

    names = {id(MAINTENANCE): "maintain", id(ROLLBACK): "rollback", id(ROLLING): "roll"}

    def note(name: str, answer: object) -> Any:
        def called(_: object, request: Any, *__: object, **___: object) -> object:
            asked.append(" ".join((names.get(id(getattr(request, "verb", None)), name), *sorted(request.gangs))))
            return answer

        return called

    monkeypatch.setattr(down, "down", note("down", ()))
    for module in (rollback, restart):
        monkeypatch.setattr(module, "restart", note("restart", RestartResult(views=(), seconds=0.0)))
    for module in (down, rollback, restart):
        monkeypatch.setattr(module, "open_cluster", lambda args, screen: module_inventory(args.inventory))
    monkeypatch.setattr(restart, "checked", lambda *_: Checked())
    return asked


def module_inventory(path: str) -> Any:
    from orchestrator.loading.inventory import load_inventory

    return load_inventory(Path(path))


def type_it(words: str, inventory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    path = tmp_path / "hosts.yml"
    path.write_text(inventory)
    verb, *rest = words.split()
    typed = [verb, "-i", str(path), *rest]
    monkeypatch.setattr(sys, "argv", ["l40s-deploy", *typed])
    return main(typed)


@pytest.mark.parametrize(("words", "router", "does"), TYPED, ids=[f"{words} {router}" for words, router, _ in TYPED])
def test_of_several_gangs(
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    router: bool,
    does: str,
) -> None:
    monkeypatch.setattr(restart, "can_roll", lambda *_: router)
    code = type_it(words, TWO, tmp_path, monkeypatch)
    said = capsys.readouterr().err
    if does:
        assert (code, [one.strip() for one in done]) == (Exit.DONE, [does.strip()]), said
        return
    verb, *rest = words.split()
    command = " ".join(["l40s-deploy", verb, "-i", str(tmp_path / "hosts.yml"), *rest])
    assert (code, done) == (Exit.INPUT, [])
    assert f"this would stop 2 gangs, and none is named: {BOTH}" in said
    assert f"`{command} g0`; or all of them: `{command} --all`" in said


@pytest.mark.parametrize("verb", ["down", "restart", "rollback", "restart --maintenance"])
def test_the_only_gang_needs_no_name(
    done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    assert type_it(verb, ONE, tmp_path, monkeypatch) == Exit.DONE
    assert len(done) == 1
