"""Logins that print, in every shell that is installed: a command's own output is taken apart from theirs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from tests.support.hostile import NOISES

from orchestrator.protocol.errors import NodeError, Unreachable
from orchestrator.remote import login, ssh_session
from orchestrator.remote.session import CommandResult
from orchestrator.remote.ssh_session import SshSession, open_session

from .conftest import Sshd

pytestmark = pytest.mark.processes

SHELLS = {
    "sh": ("-l", ".profile"),
    "bash": ("", ".bashrc"),
    "zsh": ("", ".zshenv"),
    "fish": ("", ".config/fish/config.fish"),
    "tcsh": ("", ".tcshrc"),
}
"""What makes a shell read its start-up file, and which one that is."""


@pytest.fixture(scope="module", params=SHELLS)
def noisy(
    request: pytest.FixtureRequest, start_sshd: Callable[..., Sshd], tmp_path_factory: pytest.TempPathFactory
) -> Sshd:
    """A server whose user has this login shell."""
    shell, (options, file) = request.param, SHELLS[request.param]
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    home = tmp_path_factory.mktemp("home")
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    (home / file).write_text(f"/bin/sh {home}/noise\n")
    server = start_sshd(f'ForceCommand SHLVL=0 HOME={home} exec {path} {options} -c "$SSH_ORIGINAL_COMMAND"')
    server.folder = home
    return server


@pytest.fixture
def session(noisy: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshSession]:
    monkeypatch.setattr(ssh_session, "LINGER_S", 0.5)
    opened = open_session(noisy.spec(), deadline_s=20)
    yield opened
    opened.close()


@pytest.mark.parametrize("noise", NOISES)
def test_what_a_login_prints_is_passed_over(noise: str, noisy: Sshd, session: SshSession) -> None:
    (noisy.folder / "noise").write_text(NOISES[noise])
    done = session.run("cat; echo why >&2; exit 3", stdin=b"\x1e\0in", deadline_s=20)
    assert (done.status, done.out) == (3, b"\x1e\0in")
    assert done.err.endswith(b"why\n")
    assert list(session.stream("echo one; read x; echo $x; printf end", stdin=b"two\n", deadline_s=20)) == [
        b"one\n",
        b"two\n",
        b"end",
    ]
    talk = session.converse('while read -r line; do echo "<$line>"; done')
    assert [talk.ask(word, deadline_s=20) for word in (b"a", b"b")] == [b"<a>", b"<b>"]


def test_a_login_without_an_end_is_the_nodes_failure(
    noisy: Sshd, session: SshSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: tuple[Callable[[SshSession], object], ...] = (
        lambda session: session.run("true", deadline_s=60),
        lambda session: list(session.stream("true", deadline_s=None)),
        lambda session: session.converse("cat").ask(b"x", deadline_s=60),
    )
    (noisy.folder / "noise").write_text("yes")
    for way in ways:
        with pytest.raises(NodeError, match="`what it runs at login` wrote more than 1 MB"):
            way(session)
    (noisy.folder / "noise").write_text("printf hello; exec sleep 60")
    monkeypatch.setattr(login, "LOGIN_S", 3.0)
    for way in ways:
        words = "its login did not come to an end within 3 s, so `.*` did not begin; it printed: hello"
        with closing(open_session(noisy.spec(), deadline_s=20)) as opened, pytest.raises(Unreachable, match=words):
            way(opened)


def test_a_login_that_ends_before_the_command_is_told_with_its_words(noisy: Sshd, session: SshSession) -> None:
    (noisy.folder / "noise").write_text("echo; echo 'this account is closed'; kill -9 $PPID")
    for way in (lambda: session.run("true", deadline_s=20), lambda: list(session.stream("true", deadline_s=20))):
        with pytest.raises(NodeError, match="a signal before `true` began: this account is closed") as caught:
            way()
        assert "ssh node0 true" in caught.value.fix
    (noisy.folder / "noise").write_text("")
    assert session.run("true", deadline_s=20) == CommandResult(0, b"", b"")


def test_start_up_files_that_read_get_none_of_the_commands_input(
    noisy: Sshd, session: SshSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time limit of their own they find nothing; without one they are what the login waits for."""
    (noisy.folder / "noise").write_text("timeout 0.3 cat")
    assert session.run("cat", stdin=b"ours", deadline_s=20).out == b"ours"
    assert list(session.stream("cat", stdin=b"ours", deadline_s=20)) == [b"ours"]
    assert session.converse('while read -r line; do echo "<$line>"; done').ask(b"a", deadline_s=20) == b"<a>"
    (noisy.folder / "noise").write_text("read answer")
    monkeypatch.setattr(login, "LOGIN_S", 0.5)
    with pytest.raises(Unreachable, match="its login did not come to an end within") as caught:
        session.run("cat", stdin=b"ours", deadline_s=20)
    assert "start-up files do or wait for" in caught.value.fix


def test_a_slow_login_takes_none_of_the_commands_time(noisy: Sshd, session: SshSession) -> None:
    (noisy.folder / "noise").write_text("sleep 1.5")
    assert session.run("echo", deadline_s=1.4).out == b"\n"
    assert session.converse("cat").ask(b"a", deadline_s=1.4) == b"a"
