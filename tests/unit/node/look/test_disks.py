"""Free space on the real file systems of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.look.disks import free_space
from orchestrator.node.look.probe import answer

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_a_directory_that_is_not_there_yet_has_the_room_of_the_one_above_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = {"a": str(tmp_path), "b": str(tmp_path / "not/there/yet"), "c": str(tmp_path / "file/below")}
    room = free_space(places)
    assert room["a"]["device"] == room["b"]["device"] == room["c"]["device"] == tmp_path.stat().st_dev
    assert room["b"]["bytes"] == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert 0 <= room["b"]["free_bytes"] <= room["b"]["bytes"]


def test_a_file_system_that_hangs_costs_its_deadline_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.statvfs

    def hangs(path: str) -> os.statvfs_result:
        if path == "/sick":
            os.read(os.pipe()[0], 1)
        return whole(path)

    monkeypatch.setattr(os, "statvfs", hangs)
    room = free_space({"root": "/", "models": "/sick", "tmp": "/"})
    assert room["models"] == {"error": "ETIMEDOUT"}
    assert room["root"]["bytes"] == room["tmp"]["bytes"] > 0


def test_a_look_asks_for_the_places_of_the_inventory(tmp_path: Path) -> None:
    asked = {"state_dir": str(tmp_path / "state"), "model_root": str(tmp_path), "nvml_deadline_s": 20}
    host = answer(asked)["host"]
    assert set(host["disks"]) == {"root", "tmp", "state", "models"}
    assert host["disks"]["state"]["device"] == tmp_path.stat().st_dev
    assert str(tmp_path) not in str(host), "a saved snapshot tells no directory of its owner's"
