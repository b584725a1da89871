"""This machine as a node."""

from __future__ import annotations

import gc
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.waiting import slack, until

from orchestrator.model.errors import NodeError, Unreachable
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.remote import session as sessions
from orchestrator.remote.connect import connect
from orchestrator.remote.local import LocalSession
from orchestrator.remote.session import CommandFailed, CommandResult


@pytest.fixture
def spec() -> NodeSpec:
    return NodeSpec(name="here", gang="g", node_rank=0, reach=Reach(host="here", connection="local"))


def test_a_command_has_status_output_and_errors(spec: NodeSpec) -> None:
    session = connect(spec, deadline_s=1)
    assert session.alive
    done = session.run("cat; echo err >&2; exit 3", stdin=b"in", deadline_s=20)
    assert done == CommandResult(3, b"in", b"err\n")
    assert session.run(["printf", "%s", "a 'b' $c"], deadline_s=20).out == b"a 'b' $c"


def test_a_signal_is_status_minus_one(spec: NodeSpec) -> None:
    assert connect(spec, deadline_s=1).run("kill -9 $$", deadline_s=20).status == -1


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_command_that_writes_without_an_end_is_this_nodes_failure(
    spec: NodeSpec, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr(sessions, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(NodeError, match="wrote more than 1 MB"):
        connect(spec, deadline_s=1).run(f"echo $$ > {tmp_path}/pid; exec cat /dev/zero {stream}", deadline_s=60)
    eventually(lambda: gone(int((tmp_path / "pid").read_text())))


def test_more_input_and_output_than_a_pipe_holds(spec: NodeSpec) -> None:
    much = b"x" * (4 << 20)
    done = connect(spec, deadline_s=1).run("tee /dev/stderr", stdin=much, deadline_s=60)
    assert (done.status, done.out, done.err) == (0, much, much)


def test_a_command_that_reads_no_input_is_no_fault(spec: NodeSpec) -> None:
    assert connect(spec, deadline_s=1).run("echo out", stdin=b"x" * (4 << 20), deadline_s=20).out == b"out\n"


def test_the_deadline_ends_the_whole_process_group(
    spec: NodeSpec, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    file = tmp_path / "pid"
    start = time.monotonic()
    with pytest.raises(Unreachable, match="did not end within 2 s"):
        connect(spec, deadline_s=1).run(f"sleep 60 & echo $! > {file}; wait", deadline_s=2)
    assert time.monotonic() - start < 10 * slack()
    eventually(lambda: gone(int(file.read_text())))


def gone(pid: int) -> bool:
    """A killed process's entry may stay until its new parent reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_lines_come_as_they_are_written(spec: NodeSpec, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lines = connect(spec, deadline_s=1).stream(f"echo one; cat {fifo}; cat", stdin=b"end", deadline_s=20)
    assert next(lines) == b"one\n"
    threading.Thread(target=fifo.write_bytes, args=(b"two\n",)).start()
    assert list(lines) == [b"two\n", b"end"]


def test_a_stream_that_fails_says_so(spec: NodeSpec) -> None:
    with pytest.raises(CommandFailed, match="status 5: why") as caught:
        list(connect(spec, deadline_s=1).stream("echo why >&2; exit 5", deadline_s=20))
    assert caught.value.err == b"why\n"


def test_a_stream_has_a_deadline_and_can_be_left(spec: NodeSpec, eventually: Callable[..., None]) -> None:
    with pytest.raises(Unreachable, match="did not end"):
        list(connect(spec, deadline_s=1).stream("echo x; sleep 60", deadline_s=0.3))
    lines = connect(spec, deadline_s=1).stream("echo $$; exec sleep 60", deadline_s=20)
    pid = int(next(lines))
    lines.close()  # type: ignore[attr-defined]
    eventually(lambda: gone(pid))


STAYS = 'echo $$; while read -r line; do echo "$line back"; done'


def test_a_command_that_stays_answers_line_after_line_and_ends_with_its_session(spec: NodeSpec) -> None:
    session = LocalSession(spec)
    talk = session.converse(f"read -r line; {STAYS}")
    pid = int(talk.ask(b"begin", deadline_s=20) or 0)
    assert [talk.ask(line, deadline_s=20) for line in (b"one", b"x" * 200_000)] == [
        b"one back",
        b"x" * 200_000 + b" back",
    ]
    session.close()
    assert gone(pid)
    assert int(talk.ask(b"begin", deadline_s=20) or pid) != pid, "the next line starts it again"
    session.close()


def test_a_command_that_has_ended_gives_no_answer(spec: NodeSpec) -> None:
    talk = LocalSession(spec).converse("read -r line; exit 3")
    assert [talk.ask(b"x", deadline_s=20) for _ in range(2)] == [None, None]


def test_a_command_that_stays_and_does_not_answer_in_time_is_ended(
    spec: NodeSpec, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    file = tmp_path / "pid"
    talk = LocalSession(spec).converse(f"echo $$ >{file}; exec sleep 60")
    with pytest.raises(Unreachable, match="did not end within 1 s"):
        talk.ask(b"x", deadline_s=1)
    eventually(lambda: gone(int(file.read_text())))


def test_a_line_without_an_end_is_this_nodes_failure(spec: NodeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(NodeError, match="wrote more than 1 MB"):
        LocalSession(spec).converse("read -r line; exec tr '\\0' x </dev/zero").ask(b"x", deadline_s=60)


def test_a_command_that_stays_ends_with_a_session_that_nobody_keeps(spec: NodeSpec) -> None:
    session = LocalSession(spec)
    pid = int(session.converse(f"read -r line; {STAYS}").ask(b"begin", deadline_s=20) or 0)
    del session
    gc.collect()
    assert gone(pid)


def test_who_waits_for_an_answer_sees_that_the_session_was_closed(spec: NodeSpec) -> None:
    session, answers = LocalSession(spec), queue.SimpleQueue[bytes | None]()
    talk = session.converse("read -r line; echo $$; exec sleep 60")
    pid = int(talk.ask(b"begin", deadline_s=20) or 0)
    waiting = threading.Thread(target=lambda: answers.put(talk.ask(b"x", deadline_s=60)))
    waiting.start()
    until(talk._asking.locked, 10)
    session.close()
    assert answers.get(timeout=20) is None and gone(pid)
    waiting.join()
