"""Each unmet condition is reported with file, port or pid."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.gang import Cluster, Gang

from orchestrator.engines import router
from orchestrator.node.agent import preflight
from orchestrator.node.agent.preflight import OwnRun
from orchestrator.node.agent.staged_run import run_of
from orchestrator.node.engine.gpus import GpuMemory, GpuUse

MIB = 1 << 20


class Memory(GpuMemory):
    """NVML's answer without NVML."""

    def ask(self, now: float) -> None:
        """Asks nothing."""

    def wait(self, deadline_s: float) -> bool:
        return self.answer is not None


def check(
    cluster: Cluster, memory: GpuMemory | None = None, own: OwnRun | None = None, **changes: Any
) -> list[tuple[str, str, str]]:
    run = run_of({**cluster.staging(0), **changes}, str(cluster.folder))
    return [(f.kind, f.where, f.what) for f in preflight.check(run, memory or Memory(()), own or OwnRun())]


def test_a_port_that_somebody_listens_on_is_told_with_its_pid(gang: Gang) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        ((kind, where, what),) = check(gang(), ports={"check_free": [{"address": "127.0.0.1", "port": port}]})
        assert (kind, where) == ("port-taken", f"port {port} on 127.0.0.1")
        assert f"pid {os.getpid()} " in what
        assert check(gang(), ports={"check_free": [{"port": port}]})[0][0] == "port-taken"


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


NAMES = [f"model-{number}.safetensors" for number in range(6)]


def safetensors(data: int) -> bytes:
    """A file of one tensor with so many bytes of data."""
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(data)


def checkpoint(cluster: Cluster, **files: bytes) -> list[str]:
    """Write an index of six files and create these; returns the check's message."""
    index = {"weight_map": {f"tensor{number}": name for number, name in enumerate(NAMES)}}
    (cluster.model / "model.safetensors.index.json").write_text(json.dumps(index))
    for place, data in files.items():
        (cluster.model / NAMES[int(place.removeprefix("f"))]).write_bytes(data)
    return [what for _, _, what in check(cluster)]


WHOLE = {f"f{number}": safetensors(number * 10) for number in range(6)}


def test_whole_weights_are_well_and_none_at_all_are_not_judged(gang: Gang) -> None:
    assert checkpoint(gang(), **WHOLE) == []
    assert checkpoint(gang()) == []


def test_an_interrupted_copy_names_what_is_missing(gang: Gang) -> None:
    assert checkpoint(gang(), f0=WHOLE["f0"]) == [f"5 of 6 weight files are missing: {', '.join(NAMES[1:4])} ..."]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (WHOLE["f3"][:-1], f"has {len(WHOLE['f3']) - 1} bytes of {len(WHOLE['f3'])}"),
        (WHOLE["f3"] + b"x", f"has {len(WHOLE['f3']) + 1} bytes of {len(WHOLE['f3'])}"),
        (b"", "has a damaged header"),
        (b"\xff" * 64, "has a damaged header"),
        (b"\x05" + bytes(7) + b"[1,2]" + bytes(9), "has a damaged header"),
    ],
    ids=["cut short", "too long", "empty", "no length", "no header"],
)
def test_a_weight_file_that_is_not_as_long_as_it_says(gang: Gang, data: bytes, fault: str) -> None:
    assert checkpoint(gang(), **{**WHOLE, "f3": data}) == [f"1 of 6 weight files are not intact: {NAMES[3]} {fault}"]


def venv(folder: Path, *installed: str) -> str:
    packages = folder / "venv/lib/python3.11/site-packages"
    for name in installed:
        (packages / f"{name}.dist-info").mkdir(parents=True)
    python = folder / "venv/bin/python3"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        ((), []),
        (("sglang-0.5.23", "torch-2.9.1+cu128", "numpy-2.0"), []),
        (("sglang-0.5.23.post1",), []),
        (("sglang-0.4.4", "torch-2.9.1"), ["sglang 0.4.4 is installed, but the stack fake has 0.5.23"]),
        (("torch-2.5.1",), ["torch 2.5.1 is installed, but the stack fake has 2.9.1"]),
    ],
    ids=["nothing to judge by", "as planned", "rebuilt", "another engine", "another torch"],
)
def test_the_planned_versions_are_installed(
    gang: Gang, tmp_path: Path, installed: tuple[str, ...], told: list[str]
) -> None:
    wanted = {"sglang": "0.5.23", "torch": "2.9.1"}
    found = check(gang(), venv_python=venv(tmp_path, *installed), packages=wanted)
    assert [what for _, _, what in found] == told
    assert {kind for kind, _, _ in found} <= {"wrong-stack"}


def test_a_stack_that_is_not_installed(gang: Gang) -> None:
    ((kind, where, _),) = check(gang(), venv_python="/nowhere/bin/python3")
    assert (kind, where) == ("no-stack", "/nowhere/bin/python3")


def test_a_missing_router_environment_names_the_routers_own_setting(gang: Gang) -> None:
    missing = {"venv_python": "/nowhere/bin/python3", "python_fix": router.PYTHON_FIX}
    run = run_of({**gang().staging(0), **missing}, "/nowhere")
    (failure,) = preflight.check(run, Memory(()))
    assert "l40s_router_venv" in failure.fix and "l40s_venv" not in failure.fix


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"GPU-a": 1, "GPU-b": 3, "GPU-c": 0}, []),
        ({}, []),
        ({"GPU-a": 1, "GPU-c": 3}, [("gpu-lost", "GPU 3 (GPU-b)", "it is lost")]),
        ({"GPU-a": 0, "GPU-c": 1, "GPU-d": 3}, [("gpu-lost", "GPU 3 (GPU-b)", "it is lost")]),
        ({"GPU-c": 1}, [("gpu-lost", "GPU 1 (GPU-a)", "it is lost"), ("gpu-lost", "GPU 3 (GPU-b)", "it is lost")]),
        ({"GPU-a": 3, "GPU-b": 1}, [("gpu-moved", "GPUs", "GPU 1 (GPU-a) is 3 now, GPU 3 (GPU-b) is 1 now")]),
    ],
    ids=["as planned", "not read", "another took its number", "lost and numbered anew", "both", "exchanged"],
)
@pytest.mark.parametrize("answers", [True, False])
def test_a_rank_never_moves_to_another_gpu(
    gang: Gang, there: dict[str, int], told: list[tuple[str, str, str]], answers: bool
) -> None:
    """Also where NVML refuses an index that it no longer has."""
    memory = Memory((1, 3), answer={1: GpuUse(1, 0), 3: GpuUse(3, 0)} if answers else None, uuids=there)
    staged: dict[str, Any] = {"device": "cuda", "gpus": [1, 3], "tp_ranks": [0, 1]}
    found = check(gang(), memory, **staged, gpu_uuids=["GPU-a", "GPU-b"])
    assert [one[:2] for one in found] == ([one[:2] for one in told] or ([] if answers else [("no-nvml", "NVML")]))
    assert all(words in what for (*_, words), (*_, what) in zip(told, found, strict=False))
    of_before = check(gang(), memory, **staged)
    assert [kind for kind, *_ in of_before] == ([] if answers else ["no-nvml"])


SELF, GONE = os.getpid(), 1 << 22
"""A process of this machine, and none (more than the largest process id)."""


@pytest.mark.parametrize(
    ("use", "own", "busy"),
    [
        (GpuUse(0, 615 * MIB), OwnRun(), ""),  # the driver's own
        (GpuUse(0, 40_000 * MIB, ((SELF, 39_000 * MIB),)), OwnRun(), f"pid {SELF} "),
        (GpuUse(0, 700 * MIB, ((SELF, 10 * MIB),)), OwnRun(), "10.0 MiB"),
        (GpuUse(0, 4096 * MIB), OwnRun(), "4.0 GiB are in use by a process that NVML does not show"),
        (GpuUse(0, 40_000 * MIB, ((SELF, 39_000 * MIB),)), OwnRun(pids=frozenset({SELF})), ""),
        (GpuUse(0, 40_000 * MIB, ((SELF, 20_000 * MIB), (1, 9 * MIB))), OwnRun(pids=frozenset({SELF})), "pid 1 "),
        (GpuUse(0, 40_000 * MIB, ((SELF, 39_000 * MIB),)), OwnRun(gpus=frozenset({0})), f"pid {SELF} "),
        (GpuUse(0, 40_000 * MIB, ((GONE, 39_000 * MIB),)), OwnRun(gpus=frozenset({0})), ""),
        (GpuUse(0, 40_000 * MIB, ((GONE, 39_000 * MIB),)), OwnRun(gpus=frozenset({1})), f"pid {GONE} "),
        (GpuUse(0, 40_000 * MIB), OwnRun(gpus=frozenset({0})), ""),
        (GpuUse(0, 40_000 * MIB), OwnRun(gpus=frozenset({1})), "a process that NVML does not show"),
    ],
    ids=map(str, range(11)),  # not by a process id
)
def test_a_gpu_is_free_unless_another_than_the_gangs_own_run_uses_it(
    gang: Gang, use: GpuUse, own: OwnRun, busy: str
) -> None:
    found = check(gang(), Memory((0,), answer={0: use}), own, device="cuda", gpus=[0], tp_ranks=[0])
    assert [one[:2] for one in found] == [("gpu-busy", "GPU 0")] * bool(busy)
    assert all(busy in what for _, _, what in found)


def test_a_port_that_the_gangs_own_run_takes_is_free_for_its_next_one(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = run_of({**gang().staging(0), "ports": {"check_free": [{"port": port}]}}, "/nowhere")
        assert preflight.check(run, Memory(()), OwnRun(pids=frozenset({SELF}))) == []
        monkeypatch.setattr(preflight, "listeners", lambda *_: set())  # its holder is hidden
        assert preflight.check(run, Memory(()), OwnRun(ports=frozenset({port}))) == []
        (hidden,) = preflight.check(run, Memory(()), OwnRun(ports=frozenset({port + 1})))
        assert hidden.kind == "port-taken" and "stop" not in hidden.fix


def test_who_has_the_port_on_another_address_is_not_blamed(gang: Gang) -> None:
    """Nor does it hide that the gang's own run has ours."""
    other = [sys.executable, "-c", LISTENS]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = run_of(
            {**gang().staging(0), "ports": {"check_free": [{"address": "127.0.0.1", "port": port}]}}, "/nowhere"
        )
        with subprocess.Popen(
            [*other, "127.0.0.2", str(port)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        ) as stranger:
            assert stranger.stdout is not None and stranger.stdout.readline() == b"listens\n"
            (blamed,) = preflight.check(run, Memory(()))
            assert f"in use by pid {SELF} " in blamed.what
            assert preflight.check(run, Memory(()), OwnRun(pids=frozenset({SELF}))) == []
            stranger.kill()


LISTENS = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))):
    print("listens", flush=True)
    sys.stdin.read()
"""


def test_nvml_that_does_not_answer_is_told(gang: Gang) -> None:
    ((kind, _, what),) = check(gang(), Memory((0,), error="Driver Not Loaded"), device="cuda", gpus=[0])
    assert kind == "no-nvml" and "Driver Not Loaded" in what


def test_a_refused_run_starts_nothing_and_says_everything_at_once(gang: Gang) -> None:
    cluster = gang(changes={0: {"venv_python": "/nowhere/python3", "model_path": "/nowhere/model"}})
    cluster.stage()
    answer = cluster.arm(0)
    assert answer["ok"] is False
    assert (answer["error"]["kind"], answer["error"]["where"]) == ("no-stack", "/nowhere/python3")
    assert "/nowhere/model: the model directory of Fake does not exist" in answer["error"]["what"]
    cluster.nothing_left()
