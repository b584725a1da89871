"""Work that starts before its result is needed."""

from __future__ import annotations

import threading

import pytest

from orchestrator.model.errors import InputError
from orchestrator.remote.background import ahead


def test_it_goes_on_beside_us() -> None:
    go = threading.Event()
    promised = ahead(lambda: go.wait(20))
    assert not promised.done()
    go.set()
    assert promised.result(20) is True


def test_its_failure_is_raised_where_the_result_is_wanted() -> None:
    def fail() -> None:
        raise InputError("what", where="where", fix="fix")

    promised = ahead(fail)
    with pytest.raises(InputError, match="what"):
        promised.result(20)
