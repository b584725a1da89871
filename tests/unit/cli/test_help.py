"""Every command explains itself: --help ends 0 and shows an example; a wrong word gives one message and exit code 2."""

from __future__ import annotations

import json
import re

import pytest

from orchestrator.cli.main import VERBS, every_parser, main, verbs_of


def subcommands() -> list[tuple[str, ...]]:
    """Every verb, and the verbs below it."""
    found: list[tuple[str, ...]] = []
    for verb, parser in verbs_of(every_parser()).items():
        found += [(verb,), *((verb, name) for name in verbs_of(parser))]
    return found


@pytest.mark.parametrize("words", subcommands(), ids=" ".join)
def test_help_shows_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert f"l40s-deploy {' '.join(words)}" in capsys.readouterr().out.partition("\n\n")[2]


WRONG = [
    (("statsu",), "no verb is called 'statsu'", "did you mean status"),
    (("help", "statsu"), "no verb is called 'statsu'", "did you mean status"),
    (("checkpoint", "pusj", "x"), "no action is called 'pusj'", "did you mean push"),
    (("status", "--bogus"), "unrecognized arguments: --bogus", "`l40s-deploy status --help`"),
    (("status", "--wdie"), "unrecognized arguments: --wdie", "did you mean --wide? run"),
    (("up", "--modle=GLM-4.6-FP8"), "unrecognized arguments: --modle", "did you mean --model? run"),
    (("checkpoint", "push", "x", "--tmieout", "3"), "unrecognized arguments: --tmieout", "did you mean --timeout? run"),
    (("up", "--model"), "argument --model: expected one argument", "`l40s-deploy up --help`"),
    ((), "the following arguments are required: VERB", "`l40s-deploy --help`"),
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


def test_json_errors_are_one_document_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "-i", "/nonexistent/hosts.yml"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(err.splitlines()[-1])["error"]
    assert out == "" and "/nonexistent/hosts.yml" in error["where"] and error["fix"]


@pytest.mark.parametrize("words", [("help",), ("--help",)])
def test_verbs_are_shown_by_what_they_are_for(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    out = capsys.readouterr().out
    assert ended.value.code == 0
    first = ["init", "doctor", "prepare", "up", "status", "why", "restart", "down"]
    assert re.findall(r"^  (\S+) ", out.partition("most used:")[2].partition("\n\n")[0], re.MULTILINE) == first
    assert out.index("  down ") < out.index("serve:") < out.index("inspect:") < out.index("  web ")
    assert all(f"  {verb} " in out for verb in VERBS)


def test_verbs_are_read_at_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long summary wraps in its own column, and none of it is lost."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert all(" ".join(summary.split()) in " ".join(out.split()) for summary in VERBS.values())


@pytest.mark.parametrize("words", subcommands(), ids=" ".join)
def test_help_is_whole_at_80_columns(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        return capsys.readouterr().out

    narrow = shown(80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert {*narrow.split()} <= {*shown(500).split(), "\\", "#"}


def test_options_that_are_rarely_used_stand_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["restart", "--help"])
    options, advanced = capsys.readouterr().out.partition("usage: ")[2].partition("\nadvanced:")[::2]
    assert all(f"\n  {one}" in advanced for one in ("--hung-after", "--reboots", "--timeout"))
    assert all(f"\n  {one}" in options for one in ("--rolling", "--all", "--json"))


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", "checkpoint", "push"])
    assert ended.value.code == 0 and "usage: l40s-deploy checkpoint push" in capsys.readouterr().out


BEFORE = [("-i", "/none.yml"), ("--inventory=/none.yml", "--json"), ("--json", "-i", "/none.yml")]


@pytest.mark.parametrize("before", BEFORE)
def test_the_inventory_may_stand_before_the_verb(before: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*before, "status"]) == 2
    assert "/none.yml" in capsys.readouterr().err
