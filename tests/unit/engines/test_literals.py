"""The words that a pattern needs: never one that a matching text can lack."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.waiting import examples

from orchestrator.engines.causes import COMMON
from orchestrator.engines.host_causes import HOST, HOST_GENERAL
from orchestrator.engines.literals import required, shapes_of, telling, words_in

PATTERNS = [cause.pattern for cause in (*COMMON, *HOST, *HOST_GENERAL)]


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
@settings(max_examples=examples(60), deadline=None)
def test_a_text_that_matches_has_one_of_the_words(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(PATTERNS))
    text = data.draw(st.from_regex(re.compile(pattern)))
    words = required(pattern)
    assert not words or any(word in text for word in words)


def test_most_patterns_need_words() -> None:
    assert sum(required(pattern) == () for pattern in PATTERNS) < len(PATTERNS) / 10


@given(
    st.lists(st.sampled_from(["at 0x7f3a TP12", "error 12", "out of memory", "Decode batch", "é 7", ""]), max_size=8)
)
def test_lines_of_one_shape_are_looked_at_once_and_none_is_missed(lines: list[str]) -> None:
    words = ["error 12", "out of memory", "0x7f"]
    shapes = shapes_of(lines)
    assert len(shapes) == len(lines)
    kinds = telling(words, dict.fromkeys(shapes))
    assert all(shape in kinds for line, shape in zip(lines, shapes, strict=True) if any(word in line for word in words))
    assert words_in(words, shapes) >= {word for word in words if any(word in line for line in lines)}


def test_what_counts_and_addresses_alone_is_one_kind() -> None:
    lines = [f"[{second:02d} TP{second % 8}] Decode batch at 0x{second:06x}" for second in range(60)]
    assert len(set(shapes_of(lines))) == 1
    assert telling(["Traceback"], shapes_of(lines)) == set()
