"""This machine as a node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.waiting import slack

from orchestrator.model.errors import NodeError, Unreachable
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.remote import session as sessions
from orchestrator.remote.connect import connect
from orchestrator.remote.session import CommandFailed, Completed


@pytest.fixture
def spec() -> NodeSpec:
    return NodeSpec(name="here", gang="g", node_rank=0, reach=Reach(host="here", connection="local"))


def test_a_command_has_status_output_and_errors(spec: NodeSpec) -> None:
    session = connect(spec, deadline_s=1)
    assert session.alive
    done = session.run("cat; echo err >&2; exit 3", stdin=b"in", deadline_s=20)
    assert done == Completed(3, b"in", b"err\n")
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
    """A killed process's entry may stay until its new parent takes its status."""
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
