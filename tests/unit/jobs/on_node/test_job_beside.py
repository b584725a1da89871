"""The benchmark client as the node runs it: its input, its result, and that nothing of it stays."""

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
from orchestrator.jobs.messages import JobLine, JobOrder
from orchestrator.protocol.run_files import KeptSecrets
from orchestrator.protocol.staging import Endpoint, StagingRequest

CLIENT = """import json, os, sys, time
dataset, result, mode = sys.argv[1:]
open({seen!r}, "w").write(json.dumps({{"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid(),
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


class Node:
    """A staged run with our interpreter, whose module is the client above."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, folder / "seen.json"
        log = folder / "state/gangs/gang0/runs/r1/engine.log"
        (folder / "client.py").write_text(CLIENT.format(seen=str(self.seen), log=str(log)))
        python = folder / "python3"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        run = folder / "state/gangs/gang0/runs/r1"
        run.mkdir(parents=True)
        (run.parent.parent / "current").write_text("r1")
        staged = self.staged = StagingRequest(gang="gang0", run_id="r1", node="node0", node_rank=0, nnodes=1,
                                venv_python=str(python), env={"CUDA_VISIBLE_DEVICES": "0,1", "OF_THE_PLAN": "yes"},
                                leader=Endpoint(port=1))  # fmt: skip
        log.write_text("batch: 4 at 1.0\n")
        (run / "run.json").write_text(json.dumps(staged.kept()))
        kept = KeptSecrets(redact=("key-of-the-gang",), authorization="Bearer key-of-the-gang", files=())
        (run.parent.parent / "secrets.json").write_text(json.dumps(kept.as_json()))

    def start(self, mode: str, deadline_s: float = 60.0) -> subprocess.Popen[bytes]:
        order = JobOrder(word="bench", noun="benchmark client", files={DATASET: "[1]"}, modules={"aside": "", "os": ""},
                         command=("-m", "client", DATASET, RESULT, mode), env=ENVIRONMENT, key=KEY, result=RESULT,
                         progress=r"(\d+)/(\d+) \[", engine_log=r"batch: (\d+) at ([\d.]+)", deadline_s=deadline_s,
                         too_long="use fewer requests")  # fmt: skip
        request = {"state_dir": str(self.folder / "state"), "gang": "gang0", "order": order.as_json()}
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.node", "job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "LD_PRELOAD": "", "TMPDIR": str(self.folder)},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, mode: str, **more: float) -> list[Any]:
        out, _ = self.start(mode, **more).communicate(timeout=60)
        return [json.loads(line) for line in out.splitlines()]

    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            until(lambda: self.seen.exists() and self.seen.read_text(), 30, "it runs")
        )
        return document

    def nothing_left(self) -> bool:
        pid = self.told()["pid"]
        return not Path(f"/proc/{pid}").exists() and not list(self.folder.glob("state/tmp/*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_it_has_the_plans_environment_no_gpu_and_the_key_in_no_argument(node: Node) -> None:
    lines = node.run("fine")
    assert "".join(line.get("result", "") for line in lines) == "x" * 600000
    assert lines[-1] == {"ended": 0, "what": ""}
    assert [row for line in lines for row in line.get("decoded", ())] == [[4.0, 153.98], [4.0, 150.25]]
    told = node.told()
    wanted = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OF_THE_PLAN": "yes",
        "OPENAI_API_KEY": "key-of-the-gang",
    }
    assert {name: told["env"].get(name) for name in wanted} == wanted
    assert "key-of-the-gang" not in " ".join(told["argv"])
    assert (told["text"], stat.S_IMODE(int(told["mode"], 8))) == ("[1]", 0o600)
    assert node.nothing_left()


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("nothing", "no-result", "wrote no result"),
        ("link", "io", "symbolic links"),
        ("hang", "deadline", "did not finish within 2 s"),
    ],
)
def test_what_goes_wrong_is_said_and_leaves_nothing(node: Node, mode: str, kind: str, words: str) -> None:
    error = node.run(mode, deadline_s=2.0 if mode == "hang" else 60.0)[-1]["error"]
    assert error["kind"] == kind
    assert words in error["what"]
    assert node.nothing_left()


@pytest.mark.parametrize(
    ("mode", "what", "fix"),
    [
        ("fail", "no way, said ***", "l40s-deploy logs"),
        ("key", "Unauthorized", "API key of this run; start it again: `l40s-deploy restart gang0`"),
        ("no-package", "No module named 'pandas'", "python3 -m pip install"),
    ],
)
def test_a_client_that_fails_is_told_with_its_last_words_and_the_fix(
    node: Node, mode: str, what: str, fix: str
) -> None:
    end = JobLine.read(node.run(mode)[-1])
    assert isinstance(end, JobLine) and end.ended == 1 and what in end.what
    failure = _failed(end, "node0", node.staged, SimpleNamespace(name="gang0"))  # type: ignore[arg-type]
    assert what in failure.what and fix in failure.fix
    assert node.nothing_left()


def test_a_client_that_nobody_waits_for_is_ended(node: Node) -> None:
    process = node.start("hang")
    assert process.stdout is not None
    first = next(line for line in map(json.loads, process.stdout) if line)
    assert first == {"answered": 1, "of": 2}
    process.stdout.close()
    process.wait(30)
    until(node.nothing_left, 30, "the client is gone")
