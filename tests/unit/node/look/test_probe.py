"""The verb `probe`, on this machine as it is and on one written below a root."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.machine_files import reference_machine

from orchestrator.model.snapshot import snapshot_from_json
from orchestrator.node.look.probe import _nccl_conf, answer, free_space, host_facts
from orchestrator.topology.build import build

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*:DeprecationWarning"
)  # pytest has threads, a node has none
SOURCE = Path(__file__).parents[4] / "src"


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """The verb as the node runs it: another process, JSON in and out."""
    start = "import sys; from orchestrator.node import dispatch; sys.exit(dispatch.serve(['probe']))"
    done = subprocess.run(
        [sys.executable, "-c", start],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    said = json.loads(done.stdout)
    assert said["ok"], said
    value: dict[str, Any] = said["value"]
    return value


def test_this_machine() -> None:
    before = time.time()
    snapshot = snapshot_from_json(probe({"node": "here", "nvml_deadline_s": 20}))
    assert before - 1 <= snapshot.host["clock"] <= time.time() + 1
    topology = build(snapshot)
    assert topology.node == "here" and topology.hostname == os.uname().nodename
    loopback = topology.interface("lo")
    assert loopback is not None and "127.0.0.1/8" in loopback.ipv4 and loopback.mtu > 0
    assert len(topology.pci) == len(list(Path("/sys/bus/pci/devices").glob("*")))
    assert snapshot.text("/proc/meminfo").startswith("MemTotal:")
    assert {path.partition("/")[0] for path in snapshot.files} == {""}


def test_a_machine_below_a_root(tmp_path: Path) -> None:
    machine = reference_machine("node3", 3)
    machine.put_below(tmp_path)
    raw = probe({"node": "node3", "fs_root": str(tmp_path)})
    snapshot = snapshot_from_json(raw)
    topology = build(machine.snapshot(files=snapshot.files, links=snapshot.links))
    assert topology == build(machine.snapshot())
    assert not [path for path in snapshot.files if str(tmp_path) in path]
    assert snapshot.host["fs_root"] == str(tmp_path)


def test_one_reference_node_is_a_small_document_and_quick(tmp_path: Path) -> None:
    machine = reference_machine()
    for path in [path for path in machine.files if path.endswith("/class")]:
        folder = path.rpartition("/")[0]
        machine.write(folder, {"resource": "0x0 0x0 0x0\n" * 13, "aer_dev_fatal": "Undefined 0\n" * 19})
    machine.put_below(tmp_path)
    started = time.process_time()
    document = json.dumps(answer({"node": "node0", "fs_root": str(tmp_path), "nvml_deadline_s": 20}))
    assert len(document) < 500_000
    assert time.process_time() - started < 3  # our CPU time; elapsed time depends on other tests too


def test_facts_that_are_no_file() -> None:
    facts = host_facts("/")
    assert facts["limits"]["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert facts["uid"] == os.geteuid() and facts["user"] and facts["home"].startswith("/")
    assert facts["uname"]["release"] == os.uname().release
    assert facts["cpu_count"] == len(os.sched_getaffinity(0))
    assert facts["shm_bytes"] > 0
    assert facts["python"].count(".") == 2


def test_device_files_below_a_root(tmp_path: Path) -> None:
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for name in ("nvidia0", "nvidiactl", "sda", "infiniband/uverbs0"):
        (tmp_path / "dev" / name).touch()
    assert host_facts(str(tmp_path))["devices"] == ["/dev/infiniband/uverbs0", "/dev/nvidia0", "/dev/nvidiactl"]


@pytest.mark.parametrize("request_", [{}, {"stack": None, "state_dir": None, "colour": "a later release's"}])
def test_requests_with_little_in_them(request_: dict[str, Any]) -> None:
    assert answer({**request_, "nvml_deadline_s": 20})["host"]["fs_root"] == "/"


def test_nccls_settings_in_the_home_of_the_engines_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"l40s": SimpleNamespace(pw_dir=str(tmp_path))}
    monkeypatch.setattr("orchestrator.node.look.probe.pwd.getpwnam", users.__getitem__)
    path = str(tmp_path / ".nccl.conf")
    assert _nccl_conf("l40s") == {"path": path, "text": ""}
    (tmp_path / ".nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    assert _nccl_conf("l40s") == {"path": path, "text": "NCCL_P2P_DISABLE=1\n"}
    assert _nccl_conf("nobody-here") == {}
    (tmp_path / ".nccl.conf").unlink()
    (tmp_path / ".nccl.conf").symlink_to("/proc/1/mem" if os.geteuid() else "/proc/self/clear_refs")
    assert set(_nccl_conf("l40s")) == {"path", "error"}


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
