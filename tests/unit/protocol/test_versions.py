"""Whether two versions are of one release."""

from __future__ import annotations

import pytest

from orchestrator.protocol.versions import release


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
