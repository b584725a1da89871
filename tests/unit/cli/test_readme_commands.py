"""README.md: every command in it exists with its options, so that a newcomer can type all of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from orchestrator.cli.main import APART, VERBS, parser_of
from orchestrator.loading.profiles import load_profile

README = (Path(__file__).parents[3] / "README.md").read_text()
TYPED = re.findall(r"^ {4,}l40s-deploy (.+?)(?: +#.*)?$", README, re.MULTILINE)
MENTIONED = [" ".join(words.split()) for words in re.findall(r"`l40s-deploy ([^`]+)`", README)]
COMMANDS = sorted({command for command in (*TYPED, *MENTIONED) if command != "--help"})
QUICK_START = README.partition("## Quick start")[2].partition("\n## ")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_options(command: str) -> None:
    words = shlex.split(command)
    assert words[0] in {**VERBS, **APART}
    parser, _ = parser_of(words[0])
    _, unknown = parser.parse_known_args(words)
    assert unknown == []


def test_the_quick_start_goes_from_hosts_to_a_service_in_this_order() -> None:
    typed = re.findall(r"(?:`|^ +)l40s-deploy ([a-z]+(?: [a-z]+)?)", QUICK_START, re.MULTILINE)
    steps = ["init", "doctor", "prepare", "checkpoint download", "checkpoint reblock", "checkpoint push", "plan", "up"]
    places = [next(number for number, words in enumerate(typed) if words.startswith(step)) for step in steps]
    assert places == sorted(places)


def test_the_checkpoint_that_it_serves_is_the_one_that_it_makes() -> None:
    served = re.findall(r"--model (\S+?)[`\s]", QUICK_START)
    served = [name for name in served if name != "NAME"]
    assert len(set(served)) == 1
    profile = load_profile(served[0])
    assert f"push l40s-0:/workspace/{profile.directory}\n" in QUICK_START
    assert f" /workspace/{profile.directory}\n" in QUICK_START
