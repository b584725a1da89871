"""A node under maintenance: away, still up as before, or back."""

from __future__ import annotations

import pytest

from orchestrator.gang.steps.maintenance import ReturnState, boot_of, place

STAT = "1 (init (x) y) S 0 1 1 0 -1 4194560 9 9 9 9 1 2 3 4 20 0 1 0 {} 169 1 2\n"
OLD, NEW = "a 4", "b 4"


def test_what_names_a_boot() -> None:
    kernel = "ab1c59c4-f5a0-4e4a-8b1d-000000000000"
    assert boot_of(f"{kernel}\n{STAT.format(4)}") == f"{kernel} 4"
    assert boot_of(f"{kernel}\n") == kernel  # hidepid: we can't see process 1
    assert boot_of("") is None


@pytest.mark.parametrize(
    ("before", "now", "reboots", "wanted"),
    [
        (OLD, OLD, True, ReturnState.STILL),
        (OLD, None, True, ReturnState.AWAY),
        (OLD, NEW, True, ReturnState.BACK),
        (OLD, "a 99", True, ReturnState.BACK),
        (OLD, OLD, False, ReturnState.BACK),
        (OLD, None, False, ReturnState.AWAY),
        (None, NEW, True, ReturnState.BACK),
    ],
    ids=["not yet", "away", "a new boot", "a container's new boot", "an answer is enough", "no answer", "was away"],
)
def test_where_it_is(before: str | None, now: str | None, reboots: bool, wanted: ReturnState) -> None:
    assert place(before, now, reboots=reboots) is wanted
