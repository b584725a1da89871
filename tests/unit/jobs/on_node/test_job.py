"""Programs as the node runs them, in the engine's place and beside it: input, results, and that nothing stays."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.bench.steps.bench import _failed
from orchestrator.engines.bench_client import DATASET, ENVIRONMENT, KEY, RESULT
from orchestrator.jobs.messages import RESULTS, JobLine, JobOrder
from orchestrator.node import processes
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.run_files import AgentProcess
from orchestrator.protocol.staging import Container, Endpoint, Ports, Secrets, StagingRequest

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
CLIENT = """import json, os, sys, time
dataset, result, mode = sys.argv[1:]
open({seen!r}, "w").write(json.dumps({{"argv": sys.argv, "env": dict(os.environ), "pids": [os.getpid()],
    "mode": oct(os.stat(dataset).st_mode), "text": open(dataset).read()}}))
sys.stderr.write("50%|# | 1/2 [00:01"); sys.stderr.flush()
if mode == "hang": time.sleep(600)
if mode == "no-package": import pandas
if mode == "fail": sys.exit("no way, said key-of-the-gang")
if mode == "key": sys.exit("Warmup failed - Please make sure benchmark arguments are correct: Unauthorized: {{}}")
if mode == "link": os.symlink("/etc/passwd", result)
if mode == "fine":
    open({log!r}, "a").write("batch: 4 at 153.98\\nnothing\\nbatch: 4 at 150.25\\n")
    open(result, "w").write("x" * 600000)
"""


class JobNode:
    """A state directory; its program writes what it was given to `seen`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.state = folder, folder / "seen.json", folder / "state"
        self.state.mkdir()

    def order(self, mode: str, deadline_s: float, **changes: Any) -> JobOrder:
        raise NotImplementedError

    def start(self, mode: str, *, deadline_s: float = 60.0, **changes: Any) -> subprocess.Popen[bytes]:
        order = self.order(mode, deadline_s, **changes).as_json()
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.node", "job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NCCL_P2P_DISABLE": "1", "LD_PRELOAD": "", "TMPDIR": str(self.folder)},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"state_dir": str(self.state), "gang": "gang0", "order": order}).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, mode: str, **more: Any) -> list[Any]:
        out, _ = self.start(mode, **more).communicate(timeout=60)
        return [json.loads(line) for line in out.splitlines()]

    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            until(lambda: self.seen.exists() and self.seen.read_text(), 30, "the program runs")
        )
        return document

    def nothing_left(self) -> bool:
        found = [processes.read(pid) for pid in self.told()["pids"]]
        return all(process is None or process.gone for process in found) and not list(self.state.glob("tmp/*"))


class InPlace(JobNode):
    """Ranks of a network test."""

    def order(self, mode: str, deadline_s: float, *, spared: bool = False, **changes: Any) -> JobOrder:
        env = {"MODE": mode, "SEEN": str(self.seen), "NCCL_NET": "Socket", "HIDDEN_TOKEN": "hidden-word"}
        given = {"venv_python": sys.executable, "env": env, "leader": Endpoint(port=1), "device": "cpu", **changes}
        run = StagingRequest(gang="gang0", run_id="nettest", node="node0", node_rank=0, nnodes=1, **given)
        return JobOrder(word="nettest", noun="network test", run=run, files={"x.py": PROGRAM, "o": '{"ranks": [0]}'},
                        command=("x.py", RESULTS, "o"), deadline_s=deadline_s, too_long="wait",
                        spared=spared)  # fmt: skip


class Beside(JobNode):
    """A staged run with our interpreter, whose module is the client."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        run = self.state / "gangs/gang0/runs/r1"
        (folder / "client.py").write_text(CLIENT.format(seen=str(self.seen), log=str(run / "engine.log")))
        python = folder / "python3"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        run.mkdir(parents=True)
        (run.parent.parent / "current").write_text("r1")
        self.staged = StagingRequest(gang="gang0", run_id="r1", node="node0", node_rank=0, nnodes=1,
                                     venv_python=str(python), leader=Endpoint(port=1),
                                     env={"CUDA_VISIBLE_DEVICES": "0,1", "OF_THE_PLAN": "yes"})  # fmt: skip
        (run / "engine.log").write_text("batch: 4 at 1.0\n")
        (run / "run.json").write_text(json.dumps(self.staged.kept()))
        kept = Secrets(redact=("key-of-the-gang",), authorization="Bearer key-of-the-gang")
        (run.parent.parent / "secrets.json").write_text(json.dumps(kept.as_json()))

    def order(self, mode: str, deadline_s: float, **_: Any) -> JobOrder:
        return JobOrder(word="bench", noun="benchmark client", files={DATASET: "[1]"}, modules={"aside": "", "os": ""},
                        command=("-m", "client", DATASET, RESULT, mode), env=ENVIRONMENT, key=KEY, result=RESULT,
                        progress=r"(\d+)/(\d+) \[", engine_log=r"batch: (\d+) at ([\d.]+)", deadline_s=deadline_s,
                        too_long="use fewer requests")  # fmt: skip


@pytest.fixture
def in_place(tmp_path: Path) -> InPlace:
    return InPlace(tmp_path)


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


def test_the_ranks_have_the_plans_environment_and_no_other(in_place: InPlace) -> None:
    lines = [line for line in in_place.run("fine") if line]
    assert lines[0] == {"step": 0, "group": 0, "bytes": 64, "us": 2.5, "captured": True}
    assert lines[1] == {"done": 0, "seconds": 0.5}
    assert lines[2] == {"log": "n0:1:1 [0] NCCL INFO Using network Socket\n"}
    assert lines[3] == {"ended": 0, "what": ""}
    told = in_place.told()
    assert told["env"]["NCCL_NET"] == "Socket" and "NCCL_P2P_DISABLE" not in told["env"]
    assert told["order"]["ranks"] == [0] and told["cwd"].startswith(f"{in_place.state}/tmp/job-")
    assert in_place.nothing_left()


@pytest.mark.parametrize(
    ("where", "mode", "kind", "words"),
    [
        ("in_place", "hang", "deadline", "not finish within 2 s"),
        ("in_place", "floods", "too-much", "than 64 MiB"),
        ("beside", "hang", "deadline", "did not finish within 2 s"),
        ("beside", "nothing", "no-result", "wrote no result"),
        ("beside", "link", "io", "symbolic links"),
    ],
)
def test_what_goes_wrong_is_said_and_leaves_nothing(
    where: str, mode: str, kind: str, words: str, request: pytest.FixtureRequest
) -> None:
    node: JobNode = request.getfixturevalue(where)
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
    in_place: InPlace, mode: str, line: dict[str, Any], what: str
) -> None:
    lines = in_place.run(mode)
    assert line in lines
    assert lines[-1]["ended"] == 1 and lines[-1]["what"].endswith(what)
    assert in_place.nothing_left()


def test_a_folder_that_a_killed_application_left_goes_with_the_next_job(in_place: InPlace) -> None:
    process = in_place.start("hang")
    in_place.told()
    process.kill()
    process.communicate(timeout=30)
    (left,) = in_place.state.glob("tmp/job-*")
    in_place.seen.unlink()
    in_place.run("fine")
    assert not left.exists() and in_place.nothing_left()


def test_lines_that_are_none_are_passed_over(in_place: InPlace) -> None:
    assert in_place.run("torn")[-1] == {"ended": 0, "what": ""}


def test_ranks_that_nobody_waits_for_are_ended(in_place: InPlace) -> None:
    process = in_place.start("hang")
    in_place.told()
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    until(in_place.nothing_left, 30, "nothing of them is left")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"venv_python": "/nowhere/python3"}, "no-stack"),
        ({"container": Container(program="/nowhere/docker", image="i")}, "no-container"),
        ({"ports": Ports(check_free=(Endpoint(address="192.0.2.1", port=1),))}, "no-address"),
    ],
)
def test_a_node_that_is_not_ready_starts_nothing(in_place: InPlace, changes: dict[str, Any], kind: str) -> None:
    assert in_place.run("fine", **changes)[-1]["error"]["kind"] == kind
    assert not in_place.seen.exists()


@pytest.mark.parametrize(("state", "runs"), [(AgentState.ARMED, True), (AgentState.READY, False)])
def test_beside_a_running_engine_nothing_starts(in_place: InPlace, state: AgentState, runs: bool) -> None:
    run = in_place.state / "gangs/gang0/runs/r1"
    run.mkdir(parents=True)
    (run.parent.parent / "current").write_text("r1")
    agent = AgentProcess(pid=os.getpid(), start=processes.start_of(os.getpid()))
    (run / "agent.json").write_text(json.dumps(agent.as_json()))
    report = Report(gang="gang0", run_id="r1", node="node0", node_rank=0, state=state)
    (run / "report.json").write_text(json.dumps(report.as_json()))
    last = in_place.run("fine")[-1]
    assert last.get("ended") == 0 if runs else last["error"]["kind"] == "running"
    assert in_place.run("fine", spared=True)[-1].get("ended") == 0, "it uses nothing that the engine has"


def test_it_has_the_plans_environment_no_gpu_and_the_key_in_no_argument(beside: Beside) -> None:
    lines = beside.run("fine")
    assert "".join(line.get("result", "") for line in lines) == "x" * 600000
    assert lines[-1] == {"ended": 0, "what": ""}
    assert [row for line in lines for row in line.get("decoded", ())] == [[4.0, 153.98], [4.0, 150.25]]
    told = beside.told()
    wanted = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OF_THE_PLAN": "yes",
        "OPENAI_API_KEY": "key-of-the-gang",
    }
    assert {name: told["env"].get(name) for name in wanted} == wanted
    assert "key-of-the-gang" not in " ".join(told["argv"])
    assert (told["text"], stat.S_IMODE(int(told["mode"], 8))) == ("[1]", 0o600)
    assert beside.nothing_left()


@pytest.mark.parametrize(
    ("mode", "what", "fix"),
    [
        ("fail", "no way, said ***", "l40s-deploy logs"),
        ("key", "Unauthorized", "API key of this run; start it again: `l40s-deploy restart gang0`"),
        ("no-package", "No module named 'pandas'", "`l40s-deploy prepare`"),
    ],
)
def test_a_client_that_fails_is_told_with_its_last_words_and_the_fix(
    beside: Beside, mode: str, what: str, fix: str
) -> None:
    end = JobLine.read(beside.run(mode)[-1])
    assert isinstance(end, JobLine) and end.ended == 1 and what in end.what
    failure = _failed(end, "node0", beside.staged, SimpleNamespace(name="gang0"))  # type: ignore[arg-type]
    assert what in failure.what and fix in failure.fix
    assert beside.nothing_left()


def test_a_client_that_nobody_waits_for_is_ended(beside: Beside) -> None:
    process = beside.start("hang")
    assert process.stdout is not None
    first = next(line for line in map(json.loads, process.stdout) if line)
    assert first == {"answered": 1, "of": 2}
    process.stdout.close()
    process.wait(30)
    until(beside.nothing_left, 30, "the client is gone")
