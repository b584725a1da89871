"""Each thing that is not as it must be is told with file, port or pid."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.node import preflight
from orchestrator.node.gpus import GpuMemory, GpuUse
from orchestrator.node.run import Run

if TYPE_CHECKING:
    from tests.support.gang import Cluster

Gang = Callable[..., "Cluster"]
MIB = 1 << 20


class Memory(GpuMemory):
    """NVML's answer without NVML."""

    def wait(self, deadline_s: float) -> bool:
        return self.answer is not None


def check(cluster: Cluster, memory: GpuMemory | None = None, **changes: Any) -> list[tuple[str, str, str]]:
    run = Run.of({**cluster.staging(0), **changes}, str(cluster.folder))
    return [(f.kind, f.where, f.what) for f in preflight.check(run, memory or Memory("", ()))]


def test_all_is_well(gang: Gang) -> None:
    assert check(gang()) == []


def test_a_port_that_somebody_listens_on_is_told_with_its_pid(gang: Gang) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        ((kind, where, what),) = check(gang(), ports={"check_free": [{"address": "127.0.0.1", "port": port}]})
        assert (kind, where) == ("port-taken", f"port {port} on 127.0.0.1")
        assert f"pid {os.getpid()} " in what
        assert check(gang(), ports={"check_free": [port]})[0][0] == "port-taken"


def test_a_port_in_time_wait_is_free(gang: Gang) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert check(gang(), ports={"check_free": [{"address": "127.0.0.1", "port": port}]}) == []


def test_an_address_that_is_not_ours_is_no_taken_port(gang: Gang) -> None:
    ((kind, _, _),) = check(gang(), ports={"check_free": [{"address": "192.0.2.1", "port": 5000}]})
    assert kind == "no-address"


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda model: (model / "config.json").unlink(), "has no config.json"),
        (lambda model: (model / "config.json").write_text("{"), "can't be used"),
        (lambda model: [(model / "config.json").unlink(), model.rmdir()], "does not exist"),
    ],
    ids=["no config", "half a config", "no directory"],
)
def test_the_model_directory(gang: Gang, prepare: Callable[[Path], object], words: str) -> None:
    cluster = gang()
    prepare(cluster.model)
    ((kind, where, what),) = check(cluster)
    assert kind == "no-model" and words in what and where.startswith(str(cluster.model))


def test_an_interrupted_copy_names_what_is_missing(gang: Gang) -> None:
    cluster = gang()
    names = [f"model-{number}.safetensors" for number in range(6)]
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(names)}}
    (cluster.model / "model.safetensors.index.json").write_text(json.dumps(index))
    (cluster.model / names[0]).touch()
    ((_, _, what),) = check(cluster)
    assert what == f"5 of 6 weight files are missing: {', '.join(names[1:4])} ..."


def test_a_stack_that_is_not_installed(gang: Gang) -> None:
    ((kind, where, _),) = check(gang(), venv_python="/nowhere/bin/python3")
    assert (kind, where) == ("no-stack", "/nowhere/bin/python3")


@pytest.mark.parametrize(
    ("use", "kinds", "word"),
    [
        (GpuUse(0, 615 * MIB), [], ""),
        (GpuUse(0, 40_000 * MIB, ((os.getpid(), 39_000 * MIB),)), ["gpu-busy"], f"pid {os.getpid()} "),
        (GpuUse(0, 700 * MIB, ((os.getpid(), 10 * MIB),)), ["gpu-busy"], "0.0 GiB"),
        (GpuUse(0, 4096 * MIB), ["gpu-busy"], "4.0 GiB are in use by a process that NVML does not name"),
    ],
    ids=["idle with the driver's own memory", "busy", "barely busy", "busy by a stranger"],
)
def test_a_gpu_that_somebody_uses(gang: Gang, use: GpuUse, kinds: list[str], word: str) -> None:
    memory = Memory("", (0,), answer={0: use})
    found = check(gang(), memory, device="cuda", gpus=[0], tp_ranks=[0])
    assert [kind for kind, _, _ in found] == kinds
    assert all(where == "GPU 0" and word in what for _, where, what in found)


def test_nvml_that_does_not_answer_is_told(gang: Gang) -> None:
    ((kind, _, what),) = check(gang(), Memory("", (0,), error="Driver Not Loaded"), device="cuda", gpus=[0])
    assert kind == "no-nvml" and "Driver Not Loaded" in what


def test_a_refused_run_starts_nothing_and_says_everything_at_once(gang: Gang) -> None:
    cluster = gang(changes={0: {"venv_python": "/nowhere/python3", "model_path": "/nowhere/model"}})
    cluster.stage()
    answer = cluster.arm(0)
    assert answer["ok"] is False
    assert (answer["error"]["kind"], answer["error"]["where"]) == ("no-stack", "/nowhere/python3")
    assert "/nowhere/model: the model directory of Fake does not exist" in answer["error"]["what"]
    cluster.nothing_left()
