"""Temporary files and shared memory of a run: where they are, and that they are removed with it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.gang import linked_run

from orchestrator.node.engine import scratch
from orchestrator.protocol.staging import Watch


def folder_of(state: str, gang: str = "gang0", run: str = "20261122-152110-88e4") -> str:
    return f"{state}/gangs/{gang}/runs/{run}"


def test_a_runs_place_is_below_its_state_short_enough_for_sockets_and_its_own() -> None:
    usual = scratch.place(folder_of("/var/lib/l40s-deploy"))
    assert usual.startswith("/var/lib/l40s-deploy/tmp/") and len(usual) <= scratch.LONGEST
    deep = scratch.place(folder_of("/home/" + "x" * 80))
    assert deep.startswith("/tmp/l40s-deploy-") and len(deep) <= scratch.LONGEST
    assert len({scratch.place(folder_of("/s", gang, run)) for gang in "ab" for run in "ab"}) == 4


def test_it_is_made_once_and_goes_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "LONGEST", 4096)
    run = linked_run("a", folder_of(str(tmp_path)))
    (made,) = scratch.make(run).values()
    assert Path(made).stat().st_mode & 0o777 == 0o700 and made.startswith(f"{tmp_path}/tmp/")
    assert scratch.make(run) == {}, "somebody else may have made it"
    Path(made, "tmpab/inner").mkdir(parents=True)
    scratch.remove(run.folder)
    assert not Path(made).exists()
    scratch.remove(run.folder)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "LONGEST", 4096)
    run = linked_run("a", folder_of(str(tmp_path)))
    precious = tmp_path / "precious"
    (precious / "weights").mkdir(parents=True)
    place = Path(scratch.place(run.folder))
    place.parent.mkdir()
    place.symlink_to(precious)
    assert scratch.make(run) == {}
    scratch.remove(run.folder)
    assert (precious / "weights").is_dir()


def test_shared_memory_of_dead_processes_of_ours_is_removed_and_nothing_else(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, living = gone.pid, os.getpid()
    stays = [f"sem.loky-{living}-45r7sj5i", f"psm_{ours}a", f"x{ours}", "sglang_loads.shm", f"both-{ours}-{living}"]
    goes = [f"sem.loky-{ours}-45r7sj5i", f"torch_{ours}_17_0"]
    for name in (*stays, *goes):
        (tmp_path / name).touch()
    assert scratch.forget_shared({ours, living}, "nobody", str(tmp_path)) == []
    assert scratch.forget_shared({ours, living}, None, str(tmp_path)) == sorted(goes)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stays)
    assert scratch.forget_shared({ours}, None, str(tmp_path / "none")) == []


def test_names_without_a_process_id_go_where_the_engine_makes_such_and_no_process_has_them(tmp_path: Path) -> None:
    shared, staged = tmp_path / "shm", tmp_path / "run"
    shared.mkdir()
    staged.mkdir()
    run = linked_run("a", str(staged), watch=Watch(shared_names=("sglang_loads_*.shm",)))
    (shared / "sglang_loads_0.shm").touch()
    assert scratch.forget_named(run, str(shared)) == [], "nothing was staged"
    (shared / "sglang_loads_0.shm").unlink()
    ours, mapped, opened, other = (shared / f"{name}.shm" for name in (*[f"sglang_loads_{n}" for n in "123"], "else"))
    for file in (ours, mapped, opened, other):
        file.write_bytes(b"x" * mmap.PAGESIZE)
    now = ours.stat().st_ctime
    (staged / "run.json").touch()
    os.utime(staged / "run.json", (now, now))
    with opened.open() as held:
        with mapped.open("r+b") as source:
            memory = mmap.mmap(source.fileno(), 0)
        assert scratch.forget_named(run, str(shared)) == ["sglang_loads_1.shm"]
        memory.close()
        assert scratch.forget_named(run, str(shared)) == ["sglang_loads_2.shm"]
        assert not held.closed
    os.utime(staged / "run.json", (now + 1e6, now + 1e6))
    assert scratch.forget_named(run, str(shared)) == [], "it was there before"
    assert sorted(path.name for path in shared.iterdir()) == ["else.shm", "sglang_loads_3.shm"]
