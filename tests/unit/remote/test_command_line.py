from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.inventory import Reach
from orchestrator.remote.session import BEGIN, command_line, shown, sudo_refusal

PLAIN = Reach(host="h", user="deploy")
BECOME = Reach(host="h", user="deploy", become=True, become_user="l40s")


@given(
    words=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=3)
)
def test_words_arrive_as_they_are(words: list[str]) -> None:
    line = command_line(["printf", "%s\\0", *words], PLAIN, None)
    out = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True, timeout=20).stdout
    assert out.removeprefix(BEGIN).decode().split("\0")[:-1] == words


def test_become_goes_through_sudo_and_never_asks() -> None:
    assert command_line("a 'b'", BECOME, None).startswith("exec sudo -n -H -u l40s -- /bin/sh -c ")
    assert command_line(["a"], BECOME, False) == command_line(["a"], PLAIN, None)
    assert command_line(["a"], PLAIN, True).startswith("exec sudo -n -H -u root --")


@pytest.mark.parametrize(
    "err",
    [
        b"sudo: a password is required\n",
        b"sudo: ein Passwort ist notwendig\n",
        b"sudo: a terminal is required to read the password; either use ...\nsudo: a password is required\n",
        b"Sorry, user deploy is not allowed to execute '/bin/sh' as root on n.\n",
        b"deploy is not in the sudoers file.\n",
        b"bash: line 1: sudo: command not found\n",
        b"sudo: unknown user l40s\n",
        b"zsh:1: command not found: sudo\n",
        b"fish: Unknown command: sudo\n",
        b"mesg: ttyname failed\nWelcome\nsudo: a password is required\n",
    ],
)
def test_a_refusal_of_sudo_is_told(err: bytes) -> None:
    refusal = sudo_refusal("n0", BECOME, err)
    assert refusal is not None
    assert refusal.where == "n0"
    assert "deploy" in refusal.what
    assert "NOPASSWD" in refusal.fix


@pytest.mark.parametrize("err", [b"no such file\n", b"welcome to sudo: the game\n", b""])
def test_other_words_are_none_of_sudos(err: bytes) -> None:
    assert sudo_refusal("n0", BECOME, err) is None


def test_a_shown_command_is_one_short_line() -> None:
    assert shown("a\nb  c") == "a b c"
    assert len(shown("x" * 500)) == 70
