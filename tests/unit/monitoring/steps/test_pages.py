"""Values of the page that are read beside it."""

from __future__ import annotations

import threading

import pytest
from tests.support.waiting import until

from orchestrator.monitoring.steps.pages import CachedValue


def test_without_a_thread_the_page_says_so_and_reads_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    cached = CachedValue(lambda: "read", every_s=3600.0)
    with monkeypatch.context() as lack:
        lack.setattr(threading.Thread, "start", refused)
        assert cached.value() == (None, "can't start new thread")
    until(lambda: cached.value() == ("read", ""), 20.0)
