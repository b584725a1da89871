"""Flags are checked against what the versions' own parsers declare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.known_flags import KnownFlags, Option
from orchestrator.engines.registry import dialect, dialects
from orchestrator.protocol.errors import InputError

OLD = dialect("sglang-0.4.4").engine("0.4.4.post1").flags()
NEW = dialect("sglang-0.5").engine("0.5.23").flags()
FAMILIES = [(one, version) for one in dialects().values() for version in one.versions]
EVERY = {version: one.engine(version).flags() for one, version in FAMILIES}
BOTH = pytest.mark.parametrize("flags", EVERY.values(), ids=EVERY)


def words(text: str, flags: KnownFlags = NEW) -> tuple[Option, ...]:
    return flags.given(text.split(), where="command line")


@pytest.mark.parametrize("flag", ["--cuda-graph-max-bs", "--enable-ep-moe", "--disable-mla", "--stream-output"])
def test_flags_of_0_4_4_that_0_5_23_dropped_are_named_with_what_to_use_instead(flag: str) -> None:
    assert flag in OLD
    with pytest.raises(InputError) as caught:
        words(flag)
    assert "0.5.23" in caught.value.what
    assert caught.value.fix == NEW.renamed[flag]


def test_every_flag_that_0_5_23_dropped_has_a_hint() -> None:
    dropped = {flag for flag in OLD.by_spelling if flag not in NEW}
    assert dropped <= set(NEW.renamed)


@BOTH
def test_a_hint_never_stands_for_a_flag_that_the_version_has(flags: KnownFlags) -> None:
    assert not [flag for flag in flags.renamed if flag in flags]


@BOTH
def test_a_hint_names_only_flags_that_the_version_has(flags: KnownFlags) -> None:
    for hint in flags.renamed.values():
        for word in hint.replace(",", " ").split():
            if word.startswith("--"):
                assert word in flags, hint


def test_values_are_taken_and_checked() -> None:
    assert words("--mem-fraction-static 0.8 --enable-metrics --cuda-graph-bs-decode 1 2 4") == (
        Option("--mem-fraction-static", ("0.8",)),
        Option("--enable-metrics"),
        Option("--cuda-graph-bs-decode", ("1", "2", "4")),
    )
    assert words("--quantization=w8a8_int8") == (Option("--quantization", ("w8a8_int8",)),)
    assert words("--no-enable-tf32-matmul") == (Option("--no-enable-tf32-matmul"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--tp 32", "no flag --tp"),
        ("--mem-fraction-static", "needs one value"),
        ("--mem-fraction-static high", "is not a valid float"),
        ("--mem-fraction-static nan", "is not a valid float"),
        ("--max-running-requests 1.5", "is not a valid int"),
        ("--quantization int8", "does not offer this value"),
        ("--enable-metrics yes", "found 'yes', wanted a flag"),
        ("--enable-metrics=yes", "takes no value"),
        ("--cuda-graph-bs-decode", "at least one value"),
        ("serve", "wanted a flag"),
        ("--no-such-flag", "no flag --no-such-flag"),
    ],
)
def test_what_the_real_parser_would_refuse_is_refused_here(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        words(text)
    assert says in caught.value.what
    assert caught.value.where == "command line"
    assert caught.value.fix


def test_a_typing_error_brings_the_nearest_flag() -> None:
    with pytest.raises(InputError) as caught:
        words("--enable-metric")
    assert "--enable-metrics" in caught.value.fix


@given(st.lists(st.text(max_size=20), max_size=5))
def test_any_words_are_taken_or_refused_in_words(garbage: list[str]) -> None:
    try:
        given_flags = NEW.given(garbage, where="here")
    except InputError as refusal:
        assert refusal.what and refusal.fix
    else:
        assert all(item.flag in NEW for item in given_flags)
