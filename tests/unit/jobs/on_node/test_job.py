"""A program in the engine's place as the node runs it: its input, its results, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.jobs.messages import RESULTS, JobOrder
from orchestrator.node import processes
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.run_files import AgentProcess
from orchestrator.protocol.staging import ContainerOrder, Endpoint, Ports, StagingRequest

PROGRAM = """import json, os, sys, time
order = json.load(open(sys.argv[2]))
child = os.fork()
if child == 0:
    time.sleep(600)
mode = os.environ["MODE"]
open(os.environ["SEEN"], "w").write(json.dumps({"order": order, "env": dict(os.environ), "pids": [os.getpid(), child],
    "cwd": os.getcwd()}))
say = lambda **words: os.write(int(sys.argv[1]), (json.dumps(words) + "\\n").encode())
print("n0:1:1 [0] NCCL INFO Using network Socket", flush=True)
print("the word hidden-word must not be shown", flush=True)
if mode == "no-torch": sys.exit("ModuleNotFoundError: No module named 'torch'")
say(step=0, group=0, bytes=64, us=2.5, captured=True)
if mode == "hang": time.sleep(600)
while mode == "floods": os.write(int(sys.argv[1]), b"[" + b"x" * 65000 + b"]\\n")
if mode == "torn": os.write(int(sys.argv[1]), b"no json\\n[1]\\n")
if mode == "dies": say(died=0, signal=9); sys.exit(1)
say(done=0, seconds=0.5)
os.kill(child, 9)
"""


class Node:
    """A state directory, and our interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, folder / "seen.json"
        self.state = folder / "state"
        self.state.mkdir()

    def request(self, mode: str, *, deadline_s: float, **changes: Any) -> dict[str, Any]:
        run = StagingRequest(
            gang="gang0",
            run_id="nettest",
            node="node0",
            node_rank=0,
            nnodes=1,
            device="cpu",
            venv_python=sys.executable,
            env={"MODE": mode, "SEEN": str(self.seen), "NCCL_NET": "Socket", "HIDDEN_TOKEN": "hidden-word"},
            leader=Endpoint(port=1),
            **changes,
        )
        order = JobOrder(word="nettest", noun="network test", run=run, files={"x.py": PROGRAM, "o": '{"ranks": [0]}'},
                         command=("x.py", RESULTS, "o"), deadline_s=deadline_s, too_long="wait")  # fmt: skip
        return {"state_dir": str(self.state), "gang": "gang0", "order": order.as_json()}

    def start(self, mode: str, *, deadline_s: float = 60.0, **changes: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.node", "job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NCCL_P2P_DISABLE": "1", "LD_PRELOAD": ""},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.request(mode, deadline_s=deadline_s, **changes)).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, mode: str, **more: Any) -> list[Any]:
        out, _ = self.start(mode, **more).communicate(timeout=60)
        return [json.loads(line) for line in out.splitlines()]

    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            until(lambda: self.seen.exists() and self.seen.read_text(), 30, "the ranks run")
        )
        return document

    def nothing_left(self) -> bool:
        found = [processes.read(pid) for pid in self.told()["pids"]]
        return all(process is None or process.gone for process in found) and not list(self.state.glob("tmp/*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_ranks_have_the_plans_environment_and_no_other(node: Node) -> None:
    lines = [line for line in node.run("fine") if line]
    assert lines[0] == {"step": 0, "group": 0, "bytes": 64, "us": 2.5, "captured": True}
    assert lines[1] == {"done": 0, "seconds": 0.5}
    assert lines[2] == {"log": "n0:1:1 [0] NCCL INFO Using network Socket\n"}
    assert lines[3] == {"ended": 0, "what": ""}
    told = node.told()
    assert told["env"]["NCCL_NET"] == "Socket" and "NCCL_P2P_DISABLE" not in told["env"]
    assert told["order"]["ranks"] == [0] and told["cwd"].startswith(f"{node.state}/tmp/job-")
    assert node.nothing_left()


@pytest.mark.parametrize(
    ("mode", "kind", "words"), [("hang", "deadline", "not finish within 2 s"), ("floods", "too-much", "than 64 MiB")]
)
def test_what_goes_wrong_is_said_and_leaves_nothing(node: Node, mode: str, kind: str, words: str) -> None:
    error = node.run(mode, deadline_s=2.0 if mode == "hang" else 60.0)[-1]["error"]
    assert error["kind"] == kind and words in error["what"] and error["fix"]
    assert node.nothing_left()


@pytest.mark.parametrize(
    ("mode", "line", "what"),
    [
        ("dies", {"died": 0, "signal": 9}, "the word *** must not be shown"),
        ("no-torch", {"log": "n0:1:1 [0] NCCL INFO Using network Socket\n"}, "No module named 'torch'"),
    ],
)
def test_a_program_that_fails_is_told_with_its_last_words_and_no_secret(
    node: Node, mode: str, line: dict[str, Any], what: str
) -> None:
    lines = node.run(mode)
    assert line in lines
    assert lines[-1]["ended"] == 1 and lines[-1]["what"].endswith(what)
    assert node.nothing_left()


def test_a_folder_that_a_killed_application_left_goes_with_the_next_job(node: Node) -> None:
    process = node.start("hang")
    node.told()
    process.kill()
    process.communicate(timeout=30)
    (left,) = node.state.glob("tmp/job-*")
    node.seen.unlink()
    node.run("fine")
    assert not left.exists() and node.nothing_left()


def test_lines_that_are_none_are_passed_over(node: Node) -> None:
    assert node.run("torn")[-1] == {"ended": 0, "what": ""}


def test_ranks_that_nobody_waits_for_are_ended(node: Node) -> None:
    process = node.start("hang")
    node.told()
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    until(node.nothing_left, 30, "nothing of them is left")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"venv_python": "/nowhere/python3"}, "no-stack"),
        ({"container": ContainerOrder(program="/nowhere/docker", image="i")}, "no-container"),
        ({"ports": Ports(check_free=(Endpoint(address="192.0.2.1", port=1),))}, "no-address"),
    ],
)
def test_a_node_that_is_not_ready_starts_nothing(node: Node, changes: dict[str, Any], kind: str) -> None:
    request = node.request("fine", deadline_s=60)
    request["order"]["run"] |= {key: getattr(value, "as_json", lambda v=value: v)() for key, value in changes.items()}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.node", "job"],
        input=json.dumps(request).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert json.loads(done.stdout)["error"]["kind"] == kind
    assert not node.seen.exists()


@pytest.mark.parametrize(("state", "runs"), [(AgentState.ARMED, True), (AgentState.READY, False)])
def test_beside_a_running_engine_nothing_starts(node: Node, state: AgentState, runs: bool) -> None:
    run = node.state / "gangs/gang0/runs/r1"
    run.mkdir(parents=True)
    (run.parent.parent / "current").write_text("r1")
    agent = AgentProcess(pid=os.getpid(), start=processes.start_of(os.getpid()), run_id="r1")
    (run / "agent.json").write_text(json.dumps(agent.as_json()))
    report = Report(gang="gang0", run_id="r1", node="node0", node_rank=0, state=state)
    (run / "report.json").write_text(json.dumps(report.as_json()))
    last = node.run("fine")[-1]
    assert last.get("ended") == 0 if runs else last["error"]["kind"] == "running"
