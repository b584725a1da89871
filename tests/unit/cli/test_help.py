"""Every command explains itself: --help ends 0 and shows an example; a wrong word is one message and exit code 2."""

from __future__ import annotations

import argparse
import importlib

import pytest

from orchestrator.cli.main import VERBS, main


def subcommands() -> list[tuple[str, ...]]:
    """Every verb, and the verbs below it."""
    found: list[tuple[str, ...]] = []
    for verb in VERBS:
        parser = argparse.ArgumentParser(prog=verb)
        importlib.import_module(f"orchestrator.cli.{verb}").configure(parser)
        found.append((verb,))
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [(verb, name) for name in action.choices]
    return found


@pytest.mark.parametrize("words", subcommands(), ids=" ".join)
def test_help_shows_an_example(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    assert f"l40s-deploy {' '.join(words)}" in capsys.readouterr().out.partition("\n\n")[2]


def test_an_unknown_verb_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch"])
    assert ended.value.code == 2
    assert "launch" in capsys.readouterr().err


def test_json_errors_are_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["status", "--json", "-i", "/nonexistent/hosts.yml"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "/nonexistent/hosts.yml" in error["where"]
    assert error["fix"]
