"""The words that a pattern needs: never one that a matching text can lack."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.engines.causes import COMMON, KERNEL
from orchestrator.engines.literals import required

PATTERNS = [cause.pattern for cause in (*COMMON, *KERNEL)]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("Too many open files(?! in system)", ("Too many open files",)),
        ("error: (?:unrecognized|ambiguous)", ("unrecognized", "ambiguous")),
        (r"port \d+ is in use", (" is in use",)),
        (r"(?:abc|de)?fghi", ("fghi",)),
        (r"a|bcdef", ()),
        (r"[Oo]ut of memory", ("ut of memory",)),
        (r"(?i)out of memory", ()),
        (r"\d{3}", ()),
        ("", ()),
    ],
)
def test_what_a_text_must_have(pattern: str, words: tuple[str, ...]) -> None:
    assert required(pattern) == words


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_text_that_matches_has_one_of_the_words(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(PATTERNS))
    text = data.draw(st.from_regex(re.compile(pattern)))
    words = required(pattern)
    assert not words or any(word in text for word in words)


def test_most_patterns_need_words() -> None:
    assert sum(required(pattern) == () for pattern in PATTERNS) < len(PATTERNS) / 10
