from __future__ import annotations

import pytest

from orchestrator.model.engine_versions import holds_for, order


@pytest.mark.parametrize(
    ("versions", "held", "not_held"),
    [
        ("", ("0.4.4", "0.5.23"), ()),
        ("0.5", ("0.5", "0.5.23", "0.5.0rc1"), ("0.4.5", "1.0.5")),
        ("0.5.", ("0.5.0", "0.5.23"), ("0.50.1", "0.4.5")),
        ("0.3", ("0.32.0", "0.33.0"), ("0.23.0",)),
        ("0.5.23", ("0.5.23", "0.5.23.post1"), ("0.5.2",)),
        ("0.5.23+", ("0.5.23", "0.5.23.post1", "0.5.24", "0.5.100", "0.6", "1.0"), ("0.5.22", "0.5.2", "0.4.4.post3")),
    ],
)
def test_versions_of_a_profiles_entry(versions: str, held: tuple[str, ...], not_held: tuple[str, ...]) -> None:
    assert [version for version in held if not holds_for(versions, version)] == []
    assert [version for version in not_held if holds_for(versions, version)] == []


@pytest.mark.parametrize(
    ("earlier", "later"), [("0.4.4", "0.4.4.post1"), ("0.5.9", "0.5.23"), ("0.5.23", "0.6"), ("0.5.23+cu1", "0.5.24")]
)
def test_versions_in_order(earlier: str, later: str) -> None:
    assert order(earlier) < order(later)
