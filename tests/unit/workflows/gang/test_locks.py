"""A lock stays fresh while its holder waits for something long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.model.errors import LockHeld
from orchestrator.remote.fleet import Fleet
from orchestrator.workflows import locks
from orchestrator.workflows.locks import GangLock

if TYPE_CHECKING:
    from tests.support.local_gang import LocalGang

pytestmark = pytest.mark.processes
Local = Callable[..., "LocalGang"]


def test_it_is_renewed_by_itself_and_given_back(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.gang import until

    monkeypatch.setattr(locks, "RENEW_EVERY_S", 0.1)
    gang = local()
    files = [Path(gang.state_dir(rank), "gangs/gang0/lock") for rank in range(2)]
    with Fleet(gang.gang.nodes) as fleet:
        with GangLock(fleet, gang.gang, "restart"):
            old = time.time() - 55
            for file in files:
                os.utime(file, (old, old))
            until(lambda: all(time.time() - file.stat().st_mtime < 30 for file in files), 20.0, "renewed on every node")
            with pytest.raises(LockHeld), GangLock(fleet, gang.gang, "down"):
                pass
        assert not any(file.exists() for file in files)
