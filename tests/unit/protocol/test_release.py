"""Which release is newer."""

from __future__ import annotations

import pytest

from orchestrator.protocol.release import is_newer


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
