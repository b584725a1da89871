"""A node under maintenance: away, still up as before, or back."""

from __future__ import annotations

import pytest

from orchestrator.gang.returning import Boot, Where, boot_of, place

STAT = "1 (init (x) y) S 0 1 1 0 -1 4194560 9 9 9 9 1 2 3 4 20 0 1 0 {} 169 1 2\n"
OLD, NEW = Boot("a", "4"), Boot("b", "4")


def test_what_names_a_boot() -> None:
    kernel = "ab1c59c4-f5a0-4e4a-8b1d-000000000000"
    assert boot_of(f"{kernel}\n{STAT.format(4)}") == Boot(kernel, "4")
    assert boot_of(f"{kernel}\n") == Boot(kernel, "")  # hidepid: we can't see process 1
    assert boot_of("") is None


@pytest.mark.parametrize(
    ("before", "now", "reboots", "wanted"),
    [
        (OLD, OLD, True, Where.STILL),
        (OLD, None, True, Where.AWAY),
        (OLD, NEW, True, Where.BACK),
        (OLD, Boot("a", "99"), True, Where.BACK),
        (OLD, OLD, False, Where.BACK),
        (OLD, None, False, Where.AWAY),
        (None, NEW, True, Where.BACK),
    ],
    ids=["not yet", "away", "a new boot", "a container's new boot", "an answer is enough", "no answer", "was away"],
)
def test_where_it_is(before: Boot | None, now: Boot | None, reboots: bool, wanted: Where) -> None:
    assert place(before, now, reboots=reboots) is wanted
