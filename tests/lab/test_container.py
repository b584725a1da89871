"""An engine in a real container: podman, an image of this machine's own release, and agents that are killed.

The rendered launch script is run unchanged.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.gang import FAKE_ENGINE, Cluster
from tests.support.podman import own_podman, root_image
from tests.support.waiting import until

from orchestrator.jobs.messages import JobOrder
from orchestrator.loading.resources import template
from orchestrator.model.plan import GangPlan, Memory
from orchestrator.node import supervision
from orchestrator.node.agent.staged_run import run_of
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import Container, Endpoint, NodePlan
from orchestrator.rendering import launch_script, launch_template

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="podman is tried as root"),
    pytest.mark.skipif(not (shutil.which("podman") and shutil.which("catatonit")), reason="podman is not installed"),
]


@pytest.fixture(scope="module")
def podman() -> Iterator[Path]:
    """The folder of a `podman` that runs here."""
    with own_podman() as folder:
        yield folder


@pytest.fixture(scope="module")
def image(podman: Path) -> str:
    """Its id: an image of the lab's root file system."""
    image = root_image(podman)
    tried = subprocess.run(
        [podman / "podman", "run", "--rm", "--init", "--network", "host", image, "true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"podman can't run a container here: {tried.stderr.strip()}")
    return f"sha256:{image}"


@pytest.fixture
def gang(podman: Path, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One node whose engine runs in a container, by the script that a plan would render."""
    monkeypatch.setenv("PATH", f"{podman}:{os.environ['PATH']}")
    made = Cluster(tmp_path, nodes=1)
    asked = made.staging(0)
    tmp_path.chmod(0o755)
    node = NodePlan(
        gang="gang0",
        node="node0",
        node_rank=0,
        nnodes=1,
        model="Fake",
        stack="fake",
        device="cpu",
        command=("/usr/bin/python3", str(FAKE_ENGINE)),
        env={**asked["env"], "XDG_CACHE_HOME": str(FAKE_ENGINE.parent)},  # shown inside: the engine is there
        tp_ranks=tuple(asked["tp_ranks"]),
        model_path=asked["model_path"],
        http_url=asked["service"]["url"],
        leader=Endpoint(address="127.0.0.1", port=1),
        container=Container(program="podman", image=image),
    )
    script = launch_script(node, _plan(node), "plan1", template(launch_template(node)))
    made.changes[0] = {"launch_script": script, "container": {"program": "podman", "image": image}, "venv_python": ""}
    yield made
    made.close()


def test_ranks_are_watched_and_one_that_dies_takes_the_container_with_it(gang: Cluster, podman: Path) -> None:
    gang.ready(60)
    rank = gang.rank_pid(0)
    assert Path(f"/proc/{rank}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink(), "it is in a container"
    assert gang.mark.encode() not in _command_lines(), "values are in no command line"
    gang.kill_rank(1)
    until(lambda: gang.states() == ["failed"], 30, f"failed: {gang.states()}")
    assert gang.report(0)["cause"]["tp_rank"] == 1
    _nothing_left(gang, podman)


def test_a_stop_in_good_order_reaches_the_engine(gang: Cluster, podman: Path) -> None:
    gang.ready(60)
    answer = gang.stop(0)
    assert (answer["state"], answer["left_behind"]) == ("stopped", [])
    assert "gracefully exiting" in _log(gang), "SIGTERM to the client reaches the engine"
    _nothing_left(gang, podman)


def job(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Lines of the node's verb, as its own process."""
    words = [sys.executable, "-m", "orchestrator.node", "job"]
    said = subprocess.run(words, input=json.dumps(request), capture_output=True, text=True, timeout=90, check=False)
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_the_benchmarks_client_has_a_container_of_its_own(gang: Cluster, podman: Path) -> None:
    """The image's json.tool stands for the client: it writes its second argument from its first."""
    gang.ready(60)
    begun = JobOrder(word="bench", noun="client", files={"in": '{"b": 1, "a": 2}'}, result="out", deadline_s=60.0,
                     command=("-m", "json.tool", "--sort-keys", "in", "out"), too_long="wait")  # fmt: skip

    def bench(**changes: Any) -> list[dict[str, Any]]:
        return job({**gang.base(0), "order": replace(begun, **changes).as_json()})

    lines = bench()
    assert json.loads("".join(line.get("result", "") for line in lines)) == {"a": 2, "b": 1}, lines
    failed = bench(files={"in": "no JSON"})[-1]
    assert failed["ended"] == 1 and "Expecting value" in failed["what"]
    hung = f"time.sleep(600.{os.getpid()})"  # nobody else's on this machine
    hangs = ("-m", "timeit", "-n", "1", "-r", "1", "-s", "import time", hung)
    late = bench(command=hangs, deadline_s=3.0)[-1]["error"]
    assert late["kind"] == "deadline"
    assert gang.states() == ["ready"], "the engine is as it was"
    assert "-bench" not in _listed(podman)
    assert hung.encode() not in _command_lines()


IN_PLACE = """import json, os, sys, time
order = json.load(open(sys.argv[2]))
def say(**words): os.write(int(sys.argv[1]), (json.dumps(words) + "\\n").encode())
mode = os.environ["MODE"]
if mode == "no-torch": sys.exit("ModuleNotFoundError: No module named 'torch'")
print("n0:1:1 [0] NCCL INFO Using network", os.readlink("/proc/self/ns/pid"), os.getuid(), flush=True)
say(step=0, group=0, bytes=len(order["steps"]), us=2.5)
if mode == "hangs":
    os.fork()
    time.sleep(613.5)
say(done=0, seconds=0.5)
"""


def in_place(gang: Cluster, image: str, mode: str, *, deadline_s: float = 60.0) -> subprocess.Popen[str]:
    """The verb `job` of a node whose engine is in a container, as a separate process. mode: of its program"""
    kept: dict[str, Any] = {
        "service": None,
        "watch": {},
        "ports": {},
        "venv_python": "",
        "canary": None,
        "secrets": None,
    }
    run = {**gang.staging(0), **kept, "run_id": "nettest", "env": {"MODE": mode, "PATH": "/nowhere"},
           "engine_user": "nobody", "container": {"program": "podman", "image": image}}  # fmt: skip
    steps = [{"id": n, "kind": "all-reduce", "between": "x" * 99, "groups": [[0, 1]], "bytes": [64], "box_s": 0.1}
             for n in range(2000)]  # fmt: skip
    order = {
        "word": "nettest",
        "noun": "test",
        "run": run,
        "command": ["x.py", "3", "order.json"],
        "too_long": "wait",
        "files": {"x.py": IN_PLACE, "order.json": json.dumps({"steps": steps})},
        "deadline_s": deadline_s,
    }
    words = [sys.executable, "-m", "orchestrator.node", "job"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"state_dir": str(gang.state_dir(0)), "gang": "gang0", "order": order}))
    process.stdin.close()
    process.stdin = None
    return process


def test_what_takes_the_engines_place_runs_in_its_image_and_leaves_nothing(
    gang: Cluster, image: str, podman: Path
) -> None:
    said = [json.loads(line) for line in in_place(gang, image, "fine").communicate(timeout=90)[0].splitlines()]
    lines = [line for line in said if line]
    assert lines[:2] == [{"step": 0, "group": 0, "bytes": 2000, "us": 2.5}, {"done": 0, "seconds": 0.5}], lines
    assert lines[3] == {"ended": 0, "what": ""}
    _, place, user = lines[2]["log"].rsplit(" ", 2)
    assert place != str(Path("/proc/self/ns/pid").readlink()) and int(user) == pwd.getpwnam("nobody").pw_uid

    out, _ = in_place(gang, image, "no-torch").communicate(timeout=90)
    ended = json.loads(out.splitlines()[-1])
    assert ended == {"ended": 1, "what": "ModuleNotFoundError: No module named 'torch'"}

    out, _ = in_place(gang, image, "hangs", deadline_s=4.0).communicate(timeout=90)
    assert json.loads(out.splitlines()[-1])["error"]["kind"] == "deadline"
    assert "-nettest" not in _listed(podman)

    left = in_place(gang, image, "hangs")
    assert left.stdout is not None
    while "step" not in left.stdout.readline():
        assert left.poll() is None
    left.kill()  # nobody removes the container: the end of its standard input must
    until(lambda: "-nettest" not in _listed(podman), 30, "the container ends with whoever started it")
    left.communicate(timeout=30)


def test_agent_and_guardian_killed_at_once_leave_nothing(gang: Cluster, podman: Path) -> None:
    gang.ready(60)
    agent, _ = gang.agent(0)
    guardians = [process.pid for process in supervision.everything() if process.parent == agent]
    for pid in (agent, *guardians):
        os.kill(pid, signal.SIGKILL)
    _nothing_left(gang, podman)


def test_an_image_that_is_not_there_is_refused_before_anything_starts(gang: Cluster) -> None:
    gang.changes[0]["container"] = {"program": "podman", "image": "sha256:" + "0" * 64}
    gang.stage()
    refused = gang.arm(0)["error"]
    assert refused["kind"] == "no-stack"
    assert "load the image" in refused["fix"]


def _nothing_left(gang: Cluster, podman: Path) -> None:
    """podman may still list a container as up after its conmon was killed: what counts is that it does not run."""
    gang.nothing_left(30)
    name = run_of(gang.staging(0), gang.state_dir(0)).unit_name

    def gone() -> bool:
        words = [str(podman / "podman"), "ps", "--all", "--sync", "--format", "{{.Names}} {{.Pid}} {{.Status}}"]
        listed = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
        mine = [line.split(" ", 2) for line in listed.splitlines() if line.startswith(name)]
        return not any(status.startswith("Up") and Path(f"/proc/{pid}").exists() for _, pid, status in mine)

    until(gone, 30, "the container is gone")


def _listed(podman: Path) -> str:
    words = [str(podman / "podman"), "ps", "--all", "--format", "{{.Names}}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout


def _command_lines() -> bytes:
    return b"\n".join(supervision.title(process.pid).encode() for process in supervision.everything())


def _log(gang: Cluster) -> str:
    return Path(gang.state_dir(0), "gangs/gang0/runs", gang.run_id, "engine.log").read_text()


def _plan(node: NodePlan) -> GangPlan:
    return GangPlan(
        name="gang0",
        dialect="fake",
        engine_version="1",
        layout=Layout(tensor_parallel=2, nnodes=1, gpus_per_node=0),
        memory=Memory(),
        dist_init="127.0.0.1:1",
        http_port=1,
        model_bytes=0,
        nodes=(node,),
    )
