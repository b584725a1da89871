"""Every lock that we ship against today's package index, by its pages alone: a removed package is found here, not by
the next user who installs it. If the index does not answer, this test fails, since nothing is known then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.hosts.steps.test_locks import OURS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[2] / "scripts/lock_index.py"


def test_every_package_of_our_locks_can_still_be_had() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--timeout", "240"], capture_output=True, text=True, timeout=290, check=False
    )
    assert done.returncode != 4, f"the package index could not be asked, so that nothing is known:\n{done.stderr}"
    assert done.returncode == 0, f"locks that can't be installed any more:\n{done.stderr}"
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [lock.name for lock in OURS]
