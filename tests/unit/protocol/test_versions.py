"""Whether two versions are of one release, and which one is above."""

from __future__ import annotations

import pytest

from orchestrator.protocol.versions import is_newer, release


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.4.4.post1", "0.4.4", True),
        ("2.5.1+cu124", "2.5.1", True),
        ("2.30", "2.30.0", True),
        ("0.5.23", "0.5.2", False),
    ],
)
def test_releases(one: str, other: str, same: bool) -> None:
    assert (release(one) == release(other)) is same


@pytest.mark.parametrize(
    ("theirs", "ours", "newer"),
    [
        ("0.2.0", "0.1.0", True),
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.2.0", False),
        ("0.10", "0.9.9", True),
        ("1", "0.9.9", True),
        ("0.1.0.1", "0.1.0", True),
        ("0.2.0.dev3+abc", "0.1.0", True),
        ("", "0.1.0", False),
        ("tomorrow", "0.1.0", False),
        ("9" * 5000, "0.1.0", True),
    ],
)
def test_versions_are_compared_by_their_numbers(theirs: str, ours: str, newer: bool) -> None:
    assert is_newer(theirs, ours) is newer
