"""The guardian ignores signals that its engine obeys; the engine loses none, however early it is hit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time
from orchestrator.node.agent import staged_files
from orchestrator.node.agent.run import Run
from orchestrator.node.engine import guardian
from orchestrator.protocol.staging import Endpoint

folder, name = sys.argv[1:]
staged_files.script = lambda run: open(f"{folder}/script", "rb").read()  # a pipe: the child waits here for its words
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
