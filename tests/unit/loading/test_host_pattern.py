"""Ranges in host names, against an independent implementation of the rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loading.host_pattern import BadPattern, expand

NAMES = st.text("abcxyz-.", min_size=1, max_size=8)


@given(
    head=NAMES,
    tail=st.text("abc-.", max_size=4),
    first=st.integers(0, 300),
    count=st.integers(1, 40),
    step=st.integers(1, 5),
)
def test_a_numeric_range_counts(head: str, tail: str, first: int, count: int, step: int) -> None:
    last = first + count - 1
    names, port = expand(f"{head}[{first}:{last}:{step}]{tail}")
    assert names == tuple(f"{head}{number}{tail}" for number in range(first, last + 1, step))
    assert port is None


@given(head=NAMES, first=st.integers(0, 99), count=st.integers(1, 30), port=st.integers(1, 65535))
def test_leading_zeros_keep_the_width(head: str, first: int, count: int, port: int) -> None:
    last = first + count - 1
    names, found = expand(f"{head}[{first:04}:{last:04}]:{port}")
    assert names == tuple(f"{head}{number:04}" for number in range(first, last + 1))
    assert found == port


@given(text=st.text("ab01:[]-. \u0663", max_size=14))
def test_any_text_is_names_or_a_bad_pattern(text: str) -> None:
    try:
        names, _ = expand(text)
    except BadPattern:
        return
    assert names and all(names)


@pytest.mark.parametrize(
    "pattern",
    ["n[3:1]", "n[1]", "n[1:]", "n[1:2:0]", "n[1:2:3:4]", "n[a:1]", "n[01:100]", "n[0:99999]", "n[0:99][0:99]", "n[0:1",
     "n]", "n:0", "n:70000", "", "n[aa:bb]", "[::1]"],
)  # fmt: skip
def test_what_is_no_range_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        expand(pattern)
