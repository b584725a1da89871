"""Commands on this machine as a node and over SSH, which have all of this in common, and their shell line."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import slack, until

from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import NodeError, Unreachable
from orchestrator.remote import session as limits
from orchestrator.remote.commands import command_line, lines
from orchestrator.remote.local import LocalSession
from orchestrator.remote.login import BEGIN, shown
from orchestrator.remote.session import CommandFailed, CommandResult
from orchestrator.remote.ssh_session import SshSession, open_session

HERE = NodeSpec(name="here", gang="g", node_rank=0, reach=Reach(host="here", connection="local"))
Either = LocalSession | SshSession
STAYS = 'echo $$; while read -r line; do echo "$line back"; done'


@pytest.fixture(params=["on this machine", "over SSH"])
def session(request: pytest.FixtureRequest) -> Iterator[Either]:
    if request.param == "on this machine":
        opened: Either = LocalSession(HERE)
    else:
        opened = open_session(request.getfixturevalue("sshd").spec(), deadline_s=20)
    yield opened
    opened.close()


@pytest.fixture
def local() -> Iterator[LocalSession]:
    opened = LocalSession(HERE)
    yield opened
    opened.close()


def gone(pid: int) -> bool:
    """A killed process's entry may stay until its new parent reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def number_in(file: Path) -> int:
    return int(file.read_text())


def test_a_command_has_status_output_and_errors(session: Either) -> None:
    done = session.run("cat; echo err >&2; exit 3", stdin=b"\0\xff", deadline_s=20)
    assert done == CommandResult(3, b"\0\xff", b"err\n")
    odd = "a 'b' $HOME `id` \\ \"c\"\n; exit 9"
    assert session.run(["printf", "%s", odd], deadline_s=20) == CommandResult(0, odd.encode(), b"")


def test_a_signal_ends_the_command_and_not_the_session(session: Either) -> None:
    assert session.run("echo before; kill -9 $$", deadline_s=20) == CommandResult(-1, b"before\n", b"")
    assert session.run("cat", deadline_s=20) == CommandResult(0, b"", b"")


def test_more_than_every_pipe_and_window_both_ways(session: Either) -> None:
    much = os.urandom(1 << 20) * 6
    done = session.run("tee /dev/stderr", stdin=much, deadline_s=60)
    assert done.status == 0 and done.out == much and done.err == much


def test_a_command_that_reads_no_input_is_no_fault(session: Either) -> None:
    assert session.run("exit 4", stdin=b"x" * (4 << 20), deadline_s=20).status == 4


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_command_that_writes_without_an_end_is_the_nodes_failure(
    session: Either, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(NodeError, match="wrote more than 1 MB"):
        session.run(f"echo $$ > {tmp_path}/pid; exec cat /dev/zero {stream}", deadline_s=60)
    until(lambda: gone(number_in(tmp_path / "pid")))
    assert session.run("echo still there", deadline_s=20).out == b"still there\n"


def test_lines_come_as_they_are_written(session: Either, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    told = session.stream(f"echo one; cat {fifo}; cat", stdin=b"end", deadline_s=20)
    assert next(told) == b"one\n"
    threading.Thread(target=fifo.write_bytes, args=(b"two\n",)).start()
    assert list(told) == [b"two\n", b"end"]


def test_a_stream_that_fails_says_so_after_its_lines(session: Either) -> None:
    told = session.stream("echo one; echo why >&2; exit 5", deadline_s=20)
    assert next(told) == b"one\n"
    with pytest.raises(CommandFailed, match="status 5: why") as caught:
        next(told)
    assert (caught.value.status, caught.value.err) == (5, b"why\n")


def test_leaving_a_stream_ends_its_command(session: Either) -> None:
    told = session.stream("echo $$; while echo x; do :; done", deadline_s=20)
    pid = int(next(told))
    told.close()  # type: ignore[attr-defined]
    until(lambda: gone(pid))
    assert session.run("true", deadline_s=20).status == 0


def test_the_deadline_covers_a_command_that_keeps_talking(session: Either) -> None:
    start = time.monotonic()
    with pytest.raises(Unreachable, match=r"`while true.*did not end within 0.5 s"):
        session.run("while true; do echo x; sleep 0.05; done", deadline_s=0.5)
    assert time.monotonic() - start < 5 * slack()


def test_the_deadline_covers_a_stream(session: Either) -> None:
    with pytest.raises(Unreachable, match="did not end"):
        list(session.stream("echo x; sleep 60", deadline_s=0.5))


def test_a_command_that_stays_answers_line_after_line_and_ends_with_its_session(session: Either) -> None:
    talk = session.converse(f"read -r line; {STAYS}")
    pid = int(talk.ask(b"begin", deadline_s=20) or 0)
    long = b"x" * 200_000
    assert [talk.ask(line, deadline_s=20) for line in (b"one", long)] == [b"one back", long + b" back"]
    session.close()
    until(lambda: gone(pid))


def test_two_answers_at_once_are_told_one_after_the_other(session: Either) -> None:
    talk = session.converse("read line; echo one; echo two; read line; echo three; read line")
    assert [talk.ask(b"x", deadline_s=20) for _ in range(3)] == [b"one", b"two", b"three"]


def test_a_command_that_has_ended_gives_no_answer(session: Either) -> None:
    talk = session.converse("read -r line; exit 3")
    assert [talk.ask(b"x", deadline_s=20) for _ in range(2)] == [None, None]


def test_a_line_without_an_end_is_the_nodes_failure(session: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(NodeError, match="wrote more than 1 MB"):
        session.converse("read line; exec tr '\\0' x < /dev/zero").ask(b"report", deadline_s=60)
    assert session.run("echo still there", deadline_s=20).out == b"still there\n"


def test_the_deadline_ends_the_whole_process_group(local: LocalSession, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="did not end within 2 s"):
        local.run(f"sleep 60 & echo $! > {tmp_path}/pid; wait", deadline_s=2)
    until(lambda: gone(number_in(tmp_path / "pid")))


def test_a_command_that_stays_and_does_not_answer_in_time_is_ended(local: LocalSession, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="did not end within 1 s"):
        local.converse(f"echo $$ >{tmp_path}/pid; exec sleep 60").ask(b"x", deadline_s=1)
    until(lambda: gone(number_in(tmp_path / "pid")))


def test_on_this_machine_the_next_line_starts_it_again(local: LocalSession) -> None:
    talk = local.converse(f"read -r line; {STAYS}")
    pid = talk.ask(b"begin", deadline_s=20)
    local.close()
    assert pid != talk.ask(b"begin", deadline_s=20) is not None


def test_a_command_that_stays_ends_with_a_session_that_nobody_keeps() -> None:
    kept = LocalSession(HERE)
    pid = int(kept.converse(f"read -r line; {STAYS}").ask(b"begin", deadline_s=20) or 0)
    del kept
    gc.collect()
    assert gone(pid)


def test_who_waits_for_an_answer_sees_that_the_session_was_closed(local: LocalSession) -> None:
    answers = queue.SimpleQueue[bytes | None]()
    talk = local.converse("read -r line; echo $$; exec sleep 60")
    pid = int(talk.ask(b"begin", deadline_s=20) or 0)
    waiting = threading.Thread(target=lambda: answers.put(talk.ask(b"x", deadline_s=60)))
    waiting.start()
    until(talk._asking.locked, 10)
    local.close()
    assert answers.get(timeout=20) is None and gone(pid)
    waiting.join()


@given(chunks=st.lists(st.binary(max_size=5).map(lambda chunk: chunk.replace(b"a", b"\n"))))
def test_nothing_is_lost_and_every_line_is_whole(chunks: list[bytes]) -> None:
    found = list(lines(chunks))
    assert b"".join(found) == b"".join(chunks)
    assert all(line.endswith(b"\n") for line in found[:-1])
    assert all(line.count(b"\n") <= 1 and line for line in found)


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


def test_a_shown_command_is_one_short_line() -> None:
    assert shown("a\nb  c") == "a b c"
    assert len(shown("x" * 500)) == 70
