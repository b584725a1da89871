"""A node's ends of a bandwidth test of RDMA ports: they connect in order, fail independently, and leave nothing."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.nettest.messages import RailRun, RailsLine, RailsOrder, alone
from orchestrator.nettest.on_node import port_test
from orchestrator.nettest.rails import average_gbps
from orchestrator.node import processes
from orchestrator.protocol.staging import Endpoint, StagingRequest

ROOT = Path(__file__).parents[4]
PROGRAM = f"""#!{sys.executable}
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support import ib_write_bw
open({{pids!r}}, "a").write(f"{{{{os.getpid()}}}}\\n")
ib_write_bw.rate_of = lambda device, port: {{{{"mlx5_0": 100.0, "mlx5_1": 40.0}}}}.get(device, 0.0)
sys.exit(ib_write_bw.main())
"""
NODE = """import sys
from orchestrator.node import dispatch
from orchestrator.nettest.on_node import port_test
port_test._PLACES = sys.argv[1]
port_test._PEERMEM, port_test._DRIVER = (sys.argv[1] + "/peermem",), sys.argv[1] + "/version"
port_test.RELEASE_S = 30.0
sys.exit(dispatch.serve(["rails"]))
"""


class Ends:
    """Nodes that share this machine. Where `ib_write_bw` is the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pids = folder, folder / "pids"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "bin").mkdir()
        program = folder / "bin/ib_write_bw"
        program.write_text(PROGRAM.format(pids=str(self.pids)))
        program.chmod(0o755)

    def start(self, node: str, *runs: RailRun, wait_s: float = 30.0) -> subprocess.Popen[str]:
        state = self.folder / node
        state.mkdir()
        run = StagingRequest(gang="gang0", run_id="nettest", node=node, node_rank=0, nnodes=2, leader=Endpoint(port=1))
        order = RailsOrder(run=run, tcp_port=self.port, runs=runs, traffic_class=106, service_level=3, wait_s=wait_s,
                           deadline_s=60)  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(self.folder / "bin")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"state_dir": str(state), "gang": "gang0", "order": order.as_json()}))
        process.stdin.close()
        process.stdin = None
        return process

    def said(self, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
        out, _ = process.communicate(timeout=60)
        return [line for line in map(json.loads, out.splitlines()) if line]

    def begun(self) -> list[int]:
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []

    def nothing_left(self) -> bool:
        found = [processes.read(pid) for pid in self.begun()]
        return all(process is None or process.gone for process in found)


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


def run(number: int, device: str, *, to: str = "", gpu: int = -1) -> RailRun:
    return RailRun(id=number, device=device, port=1, gid=3, peer=to, gpu=gpu)


HERE = "127.0.0.1"


@pytest.mark.parametrize(("traffic", "level"), [(None, None), (106, 3)])
def test_packets_are_of_the_plans_class(traffic: int | None, level: int | None) -> None:
    engine = StagingRequest(gang="g", run_id="r", node="n", node_rank=0, nnodes=2, leader=Endpoint(port=1))
    order = RailsOrder(run=engine, tcp_port=5000, runs=(), traffic_class=traffic, service_level=level, wait_s=1,
                       deadline_s=1)  # fmt: skip
    words = port_test._words("ib_write_bw", order, run(0, "mlx5_0", to=HERE))
    wanted = ["--tclass=106", "-S", "3"] if traffic is not None else []
    assert words == ["ib_write_bw", "-d", "mlx5_0", "-i", "1", "-p", "5000", "-s", "1048576", "-n", "250", "-F",
                     "--report_gbits", "-x", "3", *wanted, "--", HERE]  # fmt: skip


def test_both_ends_meet_and_change_places_and_a_failed_run_is_the_only_one(ends: Ends) -> None:
    one = ends.start("node0", run(0, "mlx5_0", to=HERE), run(1, "mlx5_9", to=HERE), run(2, "mlx5_0"))
    two = ends.start("node1", run(0, "mlx5_1"), run(1, "mlx5_0"), run(2, "mlx5_0", to=HERE))
    first, second = ends.said(one), ends.said(two)
    assert first[-1] == second[-1] == {"run": -1, "text": "", "status": 0, "on_gpu": False, "missing": "",
                                       "ended": True}  # fmt: skip
    assert [line["run"] for line in first[:-1]] == [line["run"] for line in second[:-1]] == [0, 1, 2]
    assert average_gbps(first[0]["text"]) == pytest.approx(38.8)
    assert first[1]["status"] == 1 and "Unable to find" in first[1]["text"] and second[1]["status"] == 1
    assert average_gbps(second[2]["text"]) == pytest.approx(97.0)
    assert ends.nothing_left()


def test_an_end_that_comes_late_to_a_failed_run_is_not_left_waiting(ends: Ends) -> None:
    one = ends.start("node0", run(0, "mlx5_9", to=HERE), run(1, "mlx5_0"))
    until(ends.begun, 30, "the sender has begun")
    until(ends.nothing_left, 30, "the sender has failed")
    two = ends.start("node1", run(0, "mlx5_1"), run(1, "mlx5_0", to=HERE))
    first, second = ends.said(one), ends.said(two)
    assert [line["status"] for line in (*first, *second)] == [1, 0, 0, 1, 0, 0]
    assert ends.nothing_left()


@pytest.mark.parametrize("peer", ["", HERE])
def test_where_the_other_end_does_not_come_the_rest_is_given_up(ends: Ends, peer: str) -> None:
    lines = ends.said(ends.start("node0", run(0, "mlx5_0", to=peer), run(1, "mlx5_0"), run(2, "mlx5_0"), wait_s=1.0))
    assert [line["run"] for line in lines] == [0, -1] and lines[0]["status"] != 0
    assert ends.nothing_left()


HANGS = """#!/bin/sh
case "$*" in
*mlx5_1*) echo "RDMA_Write BW Test"; exec /bin/sleep 600;;
*) echo " #bytes";;
esac
"""


def test_a_run_that_hangs_after_the_ends_met_is_the_only_one(ends: Ends) -> None:
    (ends.folder / "bin/ib_write_bw").write_text(HANGS)
    lines = ends.said(ends.start("node0", run(0, "mlx5_1"), run(1, "mlx5_0"), run(2, "mlx5_1"), run(3, "mlx5_0"),
                                 wait_s=1.0))  # fmt: skip
    assert [(line["run"], line["status"]) for line in lines] == [(0, -1), (1, 0), (2, -1), (3, 0), (-1, 0)]
    assert not alone(RailsLine(text=lines[0]["text"], status=-1))


def test_what_it_prints_comes_line_by_line_where_the_node_can(ends: Ends) -> None:
    """A program that writes into a pipe keeps its words to the end, and says none of them where it is ended."""
    (ends.folder / "bin/ib_write_bw").write_text("#!/bin/sh\necho $LD_PRELOAD $_STDBUF_O\n")
    (ends.folder / "bin/stdbuf").symlink_to("/usr/bin/stdbuf")
    said = ends.said(ends.start("node0", run(0, "mlx5_1")))
    assert "libstdbuf" in said[0]["text"] and said[0]["text"].rstrip().endswith("L")


BUILT = """#!/bin/sh
case "$*" in
*--help) exec /bin/cat {help};;
*mlx5_9*--use_cuda*) echo "Couldn't allocate MR"; exit 1;;
*) echo "$CUDA_DEVICE_ORDER $*";;
esac
"""


@pytest.mark.parametrize(
    ("printed", "driver", "words"),
    [
        ("help-debian-4.5", "peermem", ""),
        ("help-cuda-4.5", "peermem", "--use_cuda=3"),
        ("help-cuda-4.5", "open", ""),
        ("help-cuda-dmabuf-4.5", "open", "--use_cuda=3 --use_cuda_dmabuf"),
        ("help-cuda-dmabuf-4.5", "peermem", "--use_cuda=3"),
        ("help-cuda-dmabuf-4.5", "closed", ""),
        ("help-cuda-dmabuf-4.5", "", ""),
    ],
)
def test_a_gpus_memory_is_used_where_program_and_driver_can_until_a_run_fails(
    printed: str, driver: str, words: str, ends: Ends
) -> None:
    folder = ends.folder / "bin"
    (folder / "ib_write_bw").write_text(BUILT.format(help=ROOT / f"tests/recorded/ib_write_bw/{printed}.txt"))
    if driver == "peermem":
        (folder / "peermem").mkdir()
    elif driver:
        (folder / "version").write_text("NVRM version: NVIDIA UNIX " + "Open Kernel Module" * (driver == "open"))
    lines = ends.said(ends.start("node0", run(0, "mlx5_0", gpu=3), run(1, "mlx5_0"), run(2, "mlx5_9", gpu=1),
                                 run(3, "mlx5_0", gpu=3)))[:-1]  # fmt: skip
    said = [re.findall(r"--use_cuda\S*", line["text"]) for line in lines]
    assert [line["on_gpu"] for line in lines] == [bool(words), False, bool(words), False]
    assert said == [words.split(), [], [], []] and [line["status"] for line in lines] == [0, 0, int(bool(words)), 0]
    assert lines[0]["text"].startswith("PCI_BUS_ID ")


def test_an_end_that_nobody_waits_for_is_ended(ends: Ends) -> None:
    process = ends.start("node0", run(0, "mlx5_0"))
    until(ends.begun, 30, "it listens")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    until(ends.nothing_left, 30, "nothing of it is left")


def test_a_node_without_perftest_says_so(ends: Ends) -> None:
    (ends.folder / "bin/ib_write_bw").unlink()
    (line,) = ends.said(ends.start("node0", run(0, "mlx5_0")))
    assert line["missing"] == "ib_write_bw" and line["ended"]
