"""`down` as a workflow: what is done before it waits for every lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.gang.steps import down as module
from orchestrator.gang.steps.down import DownRequest, down
from orchestrator.model.errors import LockHeld
from orchestrator.model.inventory import GangSpec, Inventory

INVENTORY = Inventory(path="hosts.yml", gangs=(GangSpec(name="a", nodes=()), GangSpec(name="b", nodes=())))


def done_by_down(monkeypatch: pytest.MonkeyPatch, *, held: str = "") -> list[str]:
    done: list[str] = []

    class Lock:
        def finish(self) -> None:
            done.append("forget what was begun")

        def still_ours(self) -> None:
            pass

    @contextmanager
    def lock(_: object, gang: GangSpec, *__: object, **___: object) -> Iterator[Lock]:
        if gang.name == held:
            raise LockHeld("somebody holds it", where="node0", fix="wait")
        done.append(f"lock {gang.name}")
        yield Lock()

    monkeypatch.setattr(module, "GangLock", lock)
    monkeypatch.setattr(module, "stop_gangs", lambda *_, **__: done.append("stop"))
    try:
        down(INVENTORY, DownRequest(), before_stop=lambda: done.append("out of the router"))
    except LockHeld:
        done.append("held")
    return done


def test_gangs_leave_the_router_once_every_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = ["forget what was begun"] * 2
    assert done_by_down(monkeypatch) == ["lock a", "lock b", "out of the router", "stop", *forget]


def test_whose_lock_is_held_stays_in_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    assert done_by_down(monkeypatch, held="b") == ["lock a", "held"]
