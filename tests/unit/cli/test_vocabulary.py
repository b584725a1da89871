"""One vocabulary of options: the same meaning has the same spelling in every verb that supports it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import pytest

from orchestrator.cli.main import every_parser, verbs_of
from orchestrator.cli.transfers import time_limit
from orchestrator.model.errors import Unreachable

DRY = {
    *("up", "down", "restart", "rollback", "router up", "router down", "prepare"),
    *("checkpoint download", "checkpoint reblock", "checkpoint push", "tuning push"),
}
"""Verbs that change nodes or gangs, and can rehearse it."""
READS = {
    *("status", "web", "logs", "history", "why", "plan", "models", "doctor", "discover", "version"),
    *("router status", "golden show", "golden check", "checkpoint inspect", "checkpoint verify"),
    *("tuning status", "exporter"),
}
WRITES_HERE = {
    *(
        "init",
        "models add",
        "golden accept",
        "tuning pull",
        "tuning fetch",
        "stack build",
        "stack recipe",
        "support-bundle",
    ),
    *("export prometheus", "export compose", "completion"),
}
"""Files of this machine that the operator names; none is overwritten silently."""
SEEN_OTHERWISE = {
    "guard": "it decides anew at every moment; `status` shows what it goes by",
    "lock": "without --release it shows what that would release",
    "nettest": "it leaves nothing; `plan` shows the environment that it measures in",
    "bench": "it leaves nothing on a node; its load is what its options say",
    "tuning run": "`tuning status` shows the files that it would find",
    "stack check": "it leaves nothing; `plan` shows the environment that it runs in",
    "certify": "it asks before it begins, and leaves nothing; `plan` shows what it would start",
    "notify": "a message is sent only with --test",
}
"""Verbs that act without a rehearsal, and why."""
WAITS = {
    *("up", "down", "restart", "rollback", "router up", "router down", "guard", "prepare"),
    *("nettest", "bench", "tuning run", "tuning fetch", "stack build", "stack check", "certify"),
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
    once = {"bench", "init"}  # one gang each: measured, or written
    for words, parser in ALL.items():
        if option in options(parser) and words not in once:
            assert isinstance(options(parser)[option], argparse._AppendAction), words
            assert "repeatable" in str(options(parser)[option].help), words


@pytest.mark.parametrize("words", sorted(DRY))
def test_what_changes_something_can_be_rehearsed(words: str) -> None:
    assert "--dry-run" in options(ALL[words])


def test_every_verb_can_be_rehearsed_or_says_why_not() -> None:
    verbs = {words for words, parser in ALL.items() if words and (not verbs_of(parser) or words == "models")}
    kinds = (DRY, READS, WRITES_HERE, set(SEEN_OTHERWISE))
    verbs -= {words for words in verbs if words.startswith("lab ")}
    assert verbs == set().union(*kinds), "a new verb belongs into one of the sets above"
    assert sum(map(len, kinds)) == len(set().union(*kinds)), "a verb is of one kind"
    assert {words for words, parser in ALL.items() if "--dry-run" in options(parser)} == DRY


@pytest.mark.parametrize("words", ["doctor", "discover", "logs", "prepare", "checkpoint push", "checkpoint verify"])
def test_what_looks_at_nodes_can_look_at_one(words: str) -> None:
    assert "--node" in options(ALL[words])


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
        time.sleep(0.1)  # longer than the old limit: its alarm is off
