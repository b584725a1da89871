"""Every command explains itself: --help ends 0 and shows an example, a wrong word gives one message and exit code 2,
and the same meaning has the same spelling in every verb that supports it."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from tests.support.command_lines import commands_in, parsed, whole_lines

from orchestrator.cli.main import VERBS, every_parser, main, verbs_of
from orchestrator.cli.transfers import time_limit
from orchestrator.protocol.errors import Unreachable


def below(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its own verbs, as typed."""
    yield words, parser
    for name, inner in verbs_of(parser).items():
        yield from below(f"{words} {name}".strip(), inner)


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {word: action for action in parser._actions for word in action.option_strings}


ALL = dict(below("", every_parser()))
VERBS_BELOW = [words for words in ALL if words]


Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What words show that ask for help."""

    def show(*words: str, columns: int = 120) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert ended.value.code == 0
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("words", VERBS_BELOW)
def test_help_shows_an_example(words: str, shown: Shown) -> None:
    assert f"l40s-deploy {words}" in shown(*words.split(), "--help").partition("\n\n")[2]


@pytest.mark.parametrize("words", VERBS_BELOW)
def test_help_says_what_a_verb_does_as_the_list_of_verbs_does(words: str, shown: Shown) -> None:
    above, _, name = words.rpartition(" ")
    (listed,) = [
        choice.help
        for action in ALL[above]._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
        if choice.dest == name
    ]
    assert listed and ALL[words].description == listed


@pytest.mark.parametrize("words", VERBS_BELOW)
def test_figures_of_help_have_their_unit(words: str) -> None:
    of_kinds = [action for action in options(ALL[words]).values() if action.metavar in ("TIME", "PERCENT")]
    bare = [action.help for action in of_kinds if re.search(r"[( ]\d+[),]|, \d+\)", str(action.help))]
    assert bare == [], bare


@pytest.mark.parametrize("words", VERBS_BELOW)
def test_what_stands_below_the_examples_is_filled(words: str) -> None:
    """A sentence is one line of the source, which the terminal's width breaks."""
    lines = str(ALL[words].epilog or "").splitlines()
    pairs = [(line, after) for line, after in pairwise(lines) if line and not line.startswith(" ")]
    broken = [line for line, after in pairs if after and after[0] != " " and not line.endswith(".")]
    assert broken == []


def examples(text: str) -> list[str]:
    """The lines of shell below "example:", whole."""
    block = re.search(r"^examples?:(?P<inline>.*)\n(?P<lines>(?:  .*\n)*)", text, re.MULTILINE)
    return [*whole_lines(block["lines"].splitlines())] if block else []


@pytest.mark.parametrize("columns", [80, 500])
@pytest.mark.parametrize("words", VERBS_BELOW)
def test_an_example_can_be_pasted(words: str, columns: int, shown: Shown) -> None:
    """Its remark is the shell's, and our own parser takes each command of it."""
    lines = examples(shown(*words.split(), "--help", columns=columns))
    assert lines
    for line in lines:
        command = line.partition("#")[0].strip()
        assert not re.search(r"\S {2,}\S", command), f"a remark without #: {line}"
        assert command or columns == 80
        for typed in commands_in(line):
            parsed(typed)


WRONG = [
    (("statsu",), "no verb is called 'statsu'", "did you mean status"),
    (("xyz",), "no verb is called 'xyz'", "run `l40s-deploy --help` for the list"),
    (("help", "statsu"), "no verb is called 'statsu'", "did you mean status"),
    (("checkpoint", "pusj", "x"), "no action is called 'pusj'", "did you mean push"),
    (("status", "--bogus"), "unrecognized arguments: --bogus", "`l40s-deploy status --help`"),
    (("status", "--wdie"), "unrecognized arguments: --wdie", "did you mean --wide? run"),
    (("up", "--modle=GLM-4.6-FP8"), "unrecognized arguments: --modle", "did you mean --model? run"),
    (("checkpoint", "push", "x", "--tmieout", "3"), "unrecognized arguments: --tmieout", "did you mean --timeout? run"),
    (("up", "--model"), "argument --model: expected one argument", "`l40s-deploy up --help`"),
]


@pytest.mark.parametrize(("words", "what", "fix"), WRONG)
def test_wrong_words_are_one_message_and_with_json_one_document(
    words: tuple[str, ...], what: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and what in err and fix in err
    assert main([*words, "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(err)["error"]
    assert out == "" and what in error["what"] and fix in error["fix"] and error["where"].startswith("l40s-deploy")


def test_no_option_of_ours_is_offered_for_one_of_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--model", "GLM-4.6-FP8", "--mem-fraction-static", "0.8"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("word", ["help", "--help"])
def test_verbs_are_shown_by_what_they_are_for(word: str, shown: Shown) -> None:
    out = shown(word)
    first = ["init", "doctor", "prepare", "up", "status", "why", "restart", "down"]
    assert re.findall(r"^  (\S+) ", out.partition("most used:")[2].partition("\n\n")[0], re.MULTILINE) == first
    assert out.index("  down ") < out.index("serve:") < out.index("inspect:") < out.index("  web ")
    assert all(f"  {verb} " in out for verb in VERBS)


def test_without_a_word_the_short_help_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: l40s-deploy VERB") and not err
    assert "  doctor " in out and "  exporter " not in out and "`l40s-deploy --help`" in out
    assert len(out.splitlines()) < 24 and max(map(len, out.splitlines())) <= 80
    assert main(["--json"]) == 2 and "required: VERB" in capsys.readouterr().err


def test_verbs_are_read_at_80_columns(shown: Shown) -> None:
    """A long summary wraps in its own column, and none of it is lost."""
    out = shown("--help", columns=80)
    assert max(map(len, out.splitlines())) <= 80
    assert all(" ".join(summary.split()) in " ".join(out.split()) for summary in VERBS.values())


@pytest.mark.parametrize("words", VERBS_BELOW)
def test_help_is_whole_at_80_columns(words: str, shown: Shown) -> None:
    narrow = shown(*words.split(), "--help", columns=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert {*narrow.split()} <= {*shown(*words.split(), "--help", columns=500).split(), "\\", "#"}


def test_options_that_are_rarely_used_stand_apart(shown: Shown) -> None:
    options, advanced = shown("restart", "--help").partition("usage: ")[2].partition("\nadvanced:")[::2]
    assert all(f"\n  {one}" in advanced for one in ("--hung-after", "--reboots", "--timeout"))
    assert all(f"\n  {one}" in options for one in ("--rolling", "--all", "--json"))


def test_help_of_a_verb(shown: Shown) -> None:
    assert "usage: l40s-deploy checkpoint push" in shown("help", "checkpoint", "push")


BEFORE = [("-i", "/none.yml"), ("--inventory=/none.yml", "--json"), ("--json", "-i", "/none.yml")]


@pytest.mark.parametrize("before", BEFORE)
def test_the_inventory_may_stand_before_the_verb(before: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*before, "status"]) == 2
    assert "/none.yml" in capsys.readouterr().err


DRY = {
    *("up", "down", "restart", "rollback", "router up", "router down", "prepare"),
    *("checkpoint download", "checkpoint reblock", "checkpoint push", "tuning push", "sweep"),
}
"""Verbs that change nodes or gangs, and can rehearse it."""
READS = {
    *("status", "web", "logs", "history", "why", "plan", "models", "doctor", "discover", "version"),
    *("router status", "golden show", "golden check", "checkpoint check", "checkpoint verify"),
    *("tuning status", "exporter"),
}
WRITES_HERE = {
    *("init", "models add", "golden accept", "tuning pull", "tuning fetch", "stack build", "stack recipe"),
    *("support-bundle", "export prometheus", "export compose", "completion"),
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
    "router add": "one entry of a gang that serves; `router remove` takes it back",
    "router remove": "it stops nothing, and says where the gang is the last of its model; `router add` takes it back",
}
"""Verbs that act without a rehearsal, and why."""
WAITS = {
    *("up", "down", "restart", "rollback", "router up", "router down", "guard", "prepare"),
    *("nettest", "bench", "tuning run", "tuning fetch", "stack build", "stack check", "certify"),
    *("checkpoint download", "checkpoint reblock", "checkpoint push", "checkpoint verify"),
}


@pytest.mark.parametrize("option", ["--node", "--gang"])
def test_nodes_and_gangs_are_named_by_one_repeatable_option(option: str) -> None:
    once = {"bench", "init"}  # one gang each: measured, or written
    for words, parser in ALL.items():
        if option in options(parser) and words not in once:
            assert isinstance(options(parser)[option], argparse._AppendAction), words
            assert "repeatable" in str(options(parser)[option].help), words


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
