"""The guardian ignores signals that its engine obeys; the engine loses none, however early it is hit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.engine.guardian import BEAT, GO, RELEASE, AgentWatch

SCRIPT = """
import os, signal, sys, time
from orchestrator.node.agent import staged_run
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine import guardian
from orchestrator.protocol.staging import Endpoint

folder, name = sys.argv[1:]
staged_run.script_of = lambda run: open(f"{folder}/script", "rb").read()  # a pipe: the child waits here for its words
run = Run(folder=folder, run_id="r", gang="g", node="a", node_rank=0, nnodes=1, leader=Endpoint(port=1),
          working_dir=folder)
one = guardian.fork(run, lambda: None)
one.go()
end, told = time.monotonic() + 60, []
while not any("exited" in word for word in told) and time.monotonic() < end:
    new = one.messages() or []
    for word in new:
        if "started" in word:
            os.kill(word["started"], getattr(signal, name))
            with open(f"{folder}/script", "wb") as pipe:
                pipe.write(b"exec sleep 40")
    told += new
    time.sleep(0.01)
print(os.waitstatus_to_exitcode(told[-1]["status"]))
one.close()
"""


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", -15), ("SIGINT", -2), ("SIGHUP", -1), ("SIGUSR1", -10)])
def test_a_signal_before_the_engine_is_itself_ends_it(tmp_path: Path, name: str, status: int) -> None:
    subprocess.run(["mkfifo", tmp_path / "script"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, name], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.stderr) == (f"{status}\n", "")


ARM_S, LEASE_S = 120.0, 30.0


def vigil() -> AgentWatch:
    return AgentWatch(100.0, ARM_S, LEASE_S)


def test_an_agent_has_time_to_arm_and_then_its_lease() -> None:
    one = vigil()
    assert not one.over(100.0 + ARM_S)
    assert one.over(100.5 + ARM_S) and not one.reports_death(100.5 + ARM_S)
    one.hear(110.0, BEAT)
    assert not one.over(110.0 + LEASE_S) and one.over(110.5 + LEASE_S)
    one.hear(141.0, BEAT)
    assert not one.over(141.0), "it is back"


def test_go_starts_the_engine_among_other_words() -> None:
    one = vigil()
    assert not one.hear(101.0, BEAT)
    assert one.hear(102.0, BEAT + GO + BEAT)


def test_an_agent_that_is_gone_is_reported_unless_it_was_released() -> None:
    for words, reported in ((BEAT, True), (BEAT + RELEASE, False)):
        one = vigil()
        one.hear(101.0, words)
        one.hear(102.0, b"")
        assert one.over(102.0) and one.reports_death(102.0) is reported
