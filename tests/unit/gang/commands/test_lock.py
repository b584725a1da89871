"""`lock` shows who holds a gang; it takes two words to take a living command's lock away."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.commands import unconnected
from tests.support.reference_cluster import gang as reference

from orchestrator.cli.main import main
from orchestrator.gang.commands import lock
from orchestrator.model.inventory import Inventory

GANG = reference()


@pytest.mark.parametrize(
    ("words", "code", "asked"),
    [
        ("", 0, ["show"]),
        ("--release gang0", 0, ["release", ("gang0",), False]),
        ("--release --force gang0", 0, ["release", ("gang0",), True]),
        ("--force gang0", 2, []),
    ],
)
def test_what_is_asked_of_the_nodes(words: str, code: int, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    inventory = Inventory(path="hosts.yml", gangs=(GANG,))
    monkeypatch.setattr(lock, "connected_cluster", lambda *_: unconnected(inventory))

    def told(*words: Any) -> tuple[()]:
        seen.extend(words)
        return ()

    monkeypatch.setattr(lock, "locks", lambda *_: told("show"))
    monkeypatch.setattr(
        lock, "release", lambda _, gangs, force: told("release", tuple(gang.name for gang in gangs), force)
    )
    assert main(["lock", *words.split()]) == code
    assert seen == asked
