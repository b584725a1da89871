"""What was renamed is still understood for one release, and says what it is called now."""

from __future__ import annotations

import pytest

from orchestrator.cli.arguments import FORMER_SPELLINGS, as_now
from orchestrator.cli.main import main


@pytest.mark.parametrize(
    ("typed", "now"),
    [
        ("checkpoint inspect /m", "checkpoint check /m"),
        ("checkpoint -i hosts.yml --json inspect node0:/m", "checkpoint -i hosts.yml --json check node0:/m"),
        ("checkpoint reblock /a /b --prove", "checkpoint reblock /a /b --verify"),
        ("nettest --verify-only --json", "nettest --verify --json"),
    ],
)
def test_a_former_spelling_is_replaced_and_said(typed: str, now: str) -> None:
    words, ((former, today),) = as_now(typed.split())
    assert " ".join(words) == now
    assert former != today and former.split()[0] == today.split()[0]
    assert as_now(words) == (words, [])


@pytest.mark.parametrize(
    "typed",
    [
        "checkpoint verify inspect",
        "checkpoint push inspect",
        "checkpoint -i inspect check /m",
        "up --model M -- --verify-only",
        "nettest -- --verify-only",
        "checkpoint",
        "",
    ],
)
def test_the_same_word_elsewhere_is_left_alone(typed: str) -> None:
    assert as_now(typed.split()) == (typed.split(), [])


def test_every_replacement_is_an_action_or_option_of_today_and_no_former_one_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verb, former, now in FORMER_SPELLINGS:
        with pytest.raises(SystemExit):
            main([*verb, "--help"])
        known = capsys.readouterr().out.replace(",", " ").replace("{", " ").replace("}", " ").split()
        assert now in known and former not in known


def test_it_works_and_one_line_of_stderr_says_the_word_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", "/no/such"]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == (
        "`checkpoint inspect` is called `checkpoint check` now; the next release no longer knows the former spelling"
    )
    assert "no such directory" in said.err
    assert main(["checkpoint", "check", "/no/such"]) == 2
    assert "is called" not in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_offer_the_words_of_today(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "--prove" not in script and "inspect" not in script.partition("verify by SHA-256")[0].partition("reblock")[2]
