"""The release of each node's agent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.local_gang import LocalGang

from orchestrator import __version__
from orchestrator.gang.steps.status.versions import versions


@pytest.mark.processes
def test_versions_of_a_gang(local: Callable[..., LocalGang]) -> None:
    gang = local()
    assert [(one.state, one.agent) for one in versions(gang.inventory)] == [("absent", "")] * 2
    gang.up()
    told = versions(gang.inventory)
    assert [(one.node, one.state, one.agent, one.stack) for one in told] == [
        (gang.name(rank), "ready", __version__, told[0].stack) for rank in (0, 1)
    ]
