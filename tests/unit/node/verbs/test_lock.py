"""The lock file on a node: damaged files, those of two nodes in one directory, and which command may change a gang."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import files, processes
from orchestrator.node.verbs import arm, lock, orders, report, stage
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.verbs import GangRequest, LockAnswer

HOLDER = {"token": "mine", "who": "ann", "host": "h", "pid": 7, "command": "up"}
DAMAGED = {
    "empty": b"",
    "half": b'{"token": "t", "who": "a',
    "zeros": bytes(512),
    "a list": b"[1]",
    "no text": b"\xff\xfe\x00{",
    "no token": b'{"who": "ann"}',
    "a list for a token": b'{"token": ["t"]}',
    "a text for a pid": b'{"token": "t", "who": "ann", "pid": "7"}',
    "deep": b"[" * 100_000,
    "a number beyond all": b'{"token": "t", "pid": 1' + b"0" * 5000 + b"}",
}


def ask(state: Path, op: str, **more: Any) -> Any:
    answer = lock.answer({"state_dir": str(state), "gang": "g", "op": op, **more})
    assert not isinstance(LockAnswer.read(answer), Unreadable), "the controller can read it"
    return answer


def hold(state: Path, token: str, **more: object) -> dict[str, object]:
    answer = ask(state, "acquire", holder={**HOLDER, "token": token}, **more)
    return {"mine": answer["mine"], "token": answer["held"]["token"]}


def test_a_lock_is_held_renewed_and_given_back_by_its_holder_only(tmp_path: Path) -> None:
    assert ask(tmp_path, "show")["held"] is None
    assert hold(tmp_path, "a") == {"mine": True, "token": "a"}
    assert hold(tmp_path, "b") == {"mine": False, "token": "a"}
    assert ask(tmp_path, "renew", token="b")["mine"] is False
    assert ask(tmp_path, "release", token="b")["held"]
    assert ask(tmp_path, "renew", token="a")["mine"] is True
    assert ask(tmp_path, "release", token="a")["held"] is None
    assert hold(tmp_path, "b") == {"mine": True, "token": "b"}


def later(monkeypatch: pytest.MonkeyPatch, *, boot: float = 0.0, wall: float = 0.0) -> None:
    """From now on the node's clocks are ahead by so many seconds more."""
    clock, date = time.clock_gettime, time.time
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + boot)
    monkeypatch.setattr(time, "time", lambda: date() + wall)


def test_a_clock_that_is_set_makes_no_living_lock_stale_and_no_dead_one_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(tmp_path, "a")
    for step in (3600.0, -7200.0):
        later(monkeypatch, wall=step)
        assert hold(tmp_path, "b") == {"mine": False, "token": "a"}
        assert ask(tmp_path, "renew", token="a")["mine"] is True
    later(monkeypatch, boot=lock.STALE_S + 1)
    assert ask(tmp_path, "show")["held"]["stale"] is True
    assert hold(tmp_path, "b") == {"mine": True, "token": "b"}
    assert hold(tmp_path, "c") == {"mine": False, "token": "b"}


@pytest.mark.parametrize("boot", ["another boot", None])
def test_a_lock_of_another_boot_or_release_is_judged_by_its_own_time(tmp_path: Path, boot: str | None) -> None:
    hold(tmp_path, "a")
    beside = tmp_path / "gangs/g" / lock.RENEWED
    if boot is None:
        beside.unlink()
    else:
        beside.write_text(beside.read_text().replace(processes.boot_id(), boot))
    assert hold(tmp_path, "b") == {"mine": False, "token": "a"}
    old = time.time() - lock.STALE_S - 1
    os.utime(tmp_path / "gangs/g/lock", (old, old))
    assert hold(tmp_path, "b") == {"mine": True, "token": "b"}


def test_who_was_taken_over_may_not_stop_what_the_other_started_even_when_that_one_is_done(tmp_path: Path) -> None:
    """Found by tests/simulation: a restart that was paused for 75 s stopped the gang that another one had started."""
    request = {"state_dir": str(tmp_path), "gang": "g"}
    hold(tmp_path, "a")
    assert hold(tmp_path, "b", over="a") == {"mine": True, "token": "b"}
    ask(tmp_path, "release", token="b")
    with pytest.raises(DeployError, match="no command holds it now"):
        lock.refuse_a_former_holder(GangRequest(**request, token="a"), to_end=True)
    lock.refuse_a_former_holder(GangRequest(**request, token="b"), to_end=True)
    with pytest.raises(DeployError, match="no command holds it now"):
        lock.refuse_a_former_holder(GangRequest(**request, token="b"))


def test_of_many_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: _hold_in_a_process(tmp_path, str(number)), range(8)))
    assert sum(answers) == 1


def _hold_in_a_process(folder: Path, token: str) -> bool:
    request = {"state_dir": str(folder), "gang": "g", "op": "acquire", "holder": {**HOLDER, "token": token}}
    source = f"from orchestrator.node.verbs import lock; print(lock.answer({request!r})['mine'])"
    return subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout == b"True\n"


@pytest.fixture(params=DAMAGED, ids=str)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "gangs/g/lock"
    file.parent.mkdir(parents=True)
    file.write_bytes(DAMAGED[request.param])
    return file


def test_a_damaged_lock_holds_others_off_until_it_is_stale(damaged: Path, tmp_path: Path) -> None:
    held = ask(tmp_path, "show")["held"]
    assert (held["token"], held["who"], held["stale"]) == (lock.DAMAGED, None, False)
    assert not ask(tmp_path, "acquire", holder=HOLDER)["mine"]
    assert not ask(tmp_path, "renew", token="t")["mine"]
    long_ago = time.time() - lock.STALE_S - 1
    os.utime(damaged, (long_ago, long_ago))
    assert ask(tmp_path, "acquire", holder=HOLDER)["mine"]


def test_a_damaged_lock_is_given_back_by_force(damaged: Path, tmp_path: Path) -> None:
    seen = ask(tmp_path, "show")["held"]["token"]
    assert ask(tmp_path, "release", token=seen)["held"] is None
    assert not damaged.exists()
    assert ask(tmp_path, "acquire", holder=HOLDER)["mine"]


@pytest.mark.parametrize("verb", [stage.stage, arm.answer, orders.go, orders.stop])
def test_who_has_lost_the_lock_changes_nothing(tmp_path: Path, verb: Callable[[dict[str, Any]], object]) -> None:
    ask(tmp_path, "acquire", holder={**HOLDER, "token": "theirs", "who": "bob"})
    request = {"state_dir": str(tmp_path), "gang": "g", "run_id": "r", "token": "mine"}
    with pytest.raises(DeployError, match=r"taken over or released: bob@h holds it") as refused:
        verb(request)
    assert refused.value.kind == "lock-lost"


def full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_takes_no_lock_and_says_who_holds_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(tmp_path, "acquire", holder={**HOLDER, "token": "before", "who": "bob"})
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(os, "open", full)
        assert ask(tmp_path, "acquire", holder=HOLDER)["held"]["who"] == "bob"
        ask(tmp_path, "release", token="before")
        with pytest.raises(DeployError, match="the disk is full") as refused:
            ask(tmp_path, "acquire", holder=HOLDER)
    assert refused.value.kind == "no-space"


@pytest.mark.parametrize(("run_id", "now"), [("other", "staged"), ("r", "stopped"), (None, "stopped")])
def test_a_stop_that_names_a_run_ends_no_other_one(tmp_path: Path, run_id: str | None, now: str) -> None:
    folder = tmp_path / "gangs/g/runs/r"
    folder.mkdir(parents=True)
    (tmp_path / "gangs/g/current").write_text("r")
    known = {"run_id": "r", "gang": "g", "node": "n", "node_rank": 0, "nnodes": 1, "state": "staged"}
    (folder / "report.json").write_text(json.dumps(known))
    said = orders.stop({"state_dir": str(tmp_path), "gang": "g", "run_id": run_id})
    assert said["state"] == ("absent" if now == "staged" else now)
    assert json.loads((folder / "report.json").read_text())["state"] == now


@pytest.mark.parametrize("state", ["ready", "failed", "staged"])
def test_a_full_disk_is_what_a_stop_there_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """Its agent has ended and could write no report; the lock had no room either, so its request names none."""
    folder = tmp_path / "gangs/g/runs/r"
    folder.mkdir(parents=True)
    (tmp_path / "gangs/g/current").write_text("r")
    known = {"run_id": "r", "gang": "g", "node": "n", "node_rank": 0, "nnodes": 1, "state": state}
    (folder / "report.json").write_text(json.dumps(known))
    ask(tmp_path, "acquire", holder={**HOLDER, "token": "up"})
    ask(tmp_path, "release", token="up")
    request = {"state_dir": str(tmp_path), "gang": "g", "clear": True}
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(os, "open", full)
        with pytest.raises(DeployError, match="the disk is full") as told:
            orders.stop(request)
    assert told.value.kind == "no-space" and "df -h" in told.value.fix
    assert orders.stop(request)["state"] == "stopped"


@pytest.mark.parametrize(("clear", "ordered"), [(True, True), (True, False), (False, False)])
def test_a_person_s_order_to_stop_is_kept_where_no_agent_is_left_to_obey(
    tmp_path: Path, clear: bool, ordered: bool
) -> None:
    folder = tmp_path / "gangs/g/runs/r"
    folder.mkdir(parents=True)
    (tmp_path / "gangs/g/current").write_text("r")
    known = {"run_id": "r", "gang": "g", "node": "n", "node_rank": 0, "nnodes": 1, "state": "failed"}
    (folder / "report.json").write_text(json.dumps(known))
    orders.stop({"state_dir": str(tmp_path), "gang": "g", "clear": clear, "ordered": ordered})
    assert report.of_gang(str(tmp_path), "g")["ordered"] is ordered


def test_on_a_full_disk_an_end_is_written_over_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "report.json"
    files.write_json(str(place), {"state": "starting", "more": "words"})
    monkeypatch.setattr(files, "write", full)
    files.write_json_in_any_case(str(place), {"state": "stopped"})
    assert json.loads(place.read_text()) == {"state": "stopped"}
    with pytest.raises(OSError, match="No space left"):
        files.write_json_in_any_case(str(place), {"state": 99 * "longer than the old one"})
    assert json.loads(place.read_text()) == {"state": "stopped"}


def test_a_directory_that_another_node_of_the_gang_has_is_refused(tmp_path: Path) -> None:
    for _ in range(2):
        assert ask(tmp_path, "acquire", holder=HOLDER, node="node0")["mine"]
    with pytest.raises(DeployError, match=r"node1 and node0 have the same state directory") as refused:
        ask(tmp_path, "acquire", holder=HOLDER, node="node1")
    assert refused.value.kind == "shared-state"
    ask(tmp_path, "release", token="mine")
    assert ask(tmp_path, "acquire", holder=HOLDER, node="node1")["mine"]
