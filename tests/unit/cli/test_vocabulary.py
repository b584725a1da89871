"""One vocabulary of options: what means the same is spelt the same, in every verb that can mean it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import pytest

from orchestrator.cli.every_parser import every_parser, verbs_of
from orchestrator.cli.time_limit import time_limit
from orchestrator.model.errors import Unreachable

DRY = {
    *("up", "down", "restart", "rollback", "prepare"),
    *("checkpoint push", "tuning push"),
}
"""What changes nodes or gangs, and can say beforehand how."""
WAITS = {
    *("up", "restart", "rollback", "guard", "prepare", "bench", "stack build"),
    *("checkpoint download", "checkpoint reblock", "checkpoint push", "checkpoint verify"),
}


def below(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its own verbs, as typed."""
    yield words, parser
    for name, inner in verbs_of(parser).items():
        yield from below(f"{words} {name}".strip(), inner)


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {word: action for action in parser._actions for word in action.option_strings}


ALL = dict(below("", every_parser()))


@pytest.mark.parametrize("option", ["--node", "--gang"])
def test_nodes_and_gangs_are_named_by_one_repeatable_option(option: str) -> None:
    once = {"bench", "init"}  # one gang each: what is measured, what is written
    for words, parser in ALL.items():
        if option in options(parser) and words not in once:
            assert isinstance(options(parser)[option], argparse._AppendAction), words
            assert "repeatable" in str(options(parser)[option].help), words


@pytest.mark.parametrize("words", sorted(DRY))
def test_what_changes_something_can_be_rehearsed(words: str) -> None:
    assert "--dry-run" in options(ALL[words])


@pytest.mark.parametrize("words", sorted(WAITS))
def test_what_waits_has_a_deadline_by_the_same_name(words: str) -> None:
    assert options(ALL[words])["--timeout"].metavar == "TIME"


def test_a_time_limit_ends_the_work_in_words_and_leaves_no_alarm() -> None:
    with pytest.raises(Unreachable, match=r"not finished within 0\.05 s") as failure, time_limit(0.05, fix="again"):
        time.sleep(60)
    assert failure.value.fix == "again"
    with time_limit(0.05, fix=""):
        pass
    with time_limit(0, fix=""):
        time.sleep(0.1)  # longer than the limit before: its alarm is gone
