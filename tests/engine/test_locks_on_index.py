"""Every lock that we ship, and the dialects, against today's package index, by its pages alone: a removed package and a
newer engine are found here, not by the next user. If the index does not answer, this fails: nothing is known then."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.hosts.steps.test_bundle import OURS

from orchestrator.engines.registry import newest
from orchestrator.model.engine_versions import order

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[2] / "scripts/lock_index.py"


def test_every_package_of_our_locks_can_still_be_had() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--timeout", "240"], capture_output=True, text=True, timeout=290, check=False
    )
    assert done.returncode != 4, f"the package index could not be asked, so that nothing is known:\n{done.stderr}"
    assert done.returncode == 0, f"locks that can't be installed any more:\n{done.stderr}"
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [lock.name for lock in OURS]


def test_the_newest_sglang_is_one_whose_wheel_was_read() -> None:
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = re.match(r"sglang \((\S+)\)", done.stdout)
    assert found, f"the package index could not be asked, so that nothing is known:\n{done.stderr}"
    listed = newest().versions[-1]
    assert order(found[1]) <= order(listed), (
        f"{found[1]} is newer than {listed}: run scripts/engine_facts.py on its wheel"
    )
