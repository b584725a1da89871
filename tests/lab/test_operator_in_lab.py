"""An operator's commands, on a real terminal, against one gang of four emulated nodes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator

import pytest
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import SmallLab, small_lab
from tests.support.terminal import COLUMNS, LINES, rendered
from tests.support.waiting import until

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("operator", nodes=4) as made:
        made.serve()
        yield made


def test_a_restart_ends_with_the_table_of_four_ready_nodes(lab: SmallLab) -> None:
    typed = f"stty cols {COLUMNS} rows {LINES}; {shlex.join([*L40S_DEPLOY, 'restart'])}"
    done = subprocess.run(
        ["script", "-qec", typed, "/dev/null"],
        env={**lab.environment, "TERM": "xterm-256color"},
        capture_output=True,
        timeout=180,
        check=False,
    )
    shown = rendered(done.stdout)
    assert done.returncode == 0, "\n".join(shown)
    ready = [line.split()[:3] for line in shown if " ready " in line and line[:1].isdigit()]
    assert ready == [[str(rank), f"node{rank}", "ready"] for rank in range(4)], "\n".join(shown)
    assert shown[-1].startswith("serves again after "), "\n".join(shown)


def test_status_tells_a_script_of_a_killed_rank(lab: SmallLab) -> None:
    assert lab.deploy("status", check=False).returncode == 0
    lab.deploy("lab", "break", "node2", "kill-rank", "5", "--name", lab.name)
    try:
        until(lambda: lab.gang()["state"] == "failed", 30.0, "the gang has failed")
        assert lab.deploy("status", check=False).returncode == 5
    finally:
        lab.deploy("restart")
    assert lab.deploy("status", check=False).returncode == 0
