"""A server that does not come to an end is left."""

from __future__ import annotations

import pytest
from tests.support.hostile import HOSTILE, talker

from orchestrator.remote.download import downloaded


@pytest.mark.parametrize("hostile", ["dripping status", "dripping headers", "dripping body", "going on", "noise"])
def test_a_download_that_does_not_come_is_left(hostile: str) -> None:
    with talker(*HOSTILE[hostile]) as port, pytest.raises(OSError, match=r"time limit|BadStatusLine"):
        downloaded(f"http://127.0.0.1:{port}/", 100_000, 0.3)
