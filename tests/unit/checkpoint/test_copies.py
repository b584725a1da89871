"""Which copy is the odd one when copies differ."""

from __future__ import annotations

import pytest

from orchestrator.checkpoint.copies import differences


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ({"a": "1", "b": "1", "c": "2"}, "differs on c"),
        ({"a": "1", "b": "1", "c": None}, "missing on c"),
        ({"a": "1", "b": "2"}, "not the same: a 1; b 2"),
        ({"a": "1", "b": None}, "missing on b"),
        ({"a": "1", "b": "1", "c": "2", "d": "2"}, "not the same: a 1; b 1; c 2; d 2"),
        ({"a": "1", "b": "1", "c": "1", "d": None, "e": "3"}, "missing on d, differs on e"),
    ],
)
def test_the_odd_ones_are_named_where_most_agree(copies: dict[str, str | None], words: str) -> None:
    found = differences({node: {"f": digest} if digest else {} for node, digest in copies.items()})
    assert [one.words() for one in found] == [words]


def test_equal_copies_have_no_differences() -> None:
    assert differences({"a": {"f": "1"}, "b": {"f": "1"}}) == ()
    assert differences({"a": {"f": "1"}}) == ()
