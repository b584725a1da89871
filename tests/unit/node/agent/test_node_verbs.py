"""The verbs that need no running agent: stage, report, stop, lock, logs; and how a process died."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.gang import Cluster, Gang
from tests.support.waiting import slack

from orchestrator.node import processes, supervision
from orchestrator.node.verbs import report, stage
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.report import Report


def test_staged_files_keep_their_secret(gang: Gang) -> None:
    cluster = gang()
    folder = Path(stage.stage(cluster.staging(0))["folder"])
    assert (folder / "key").read_text().strip() == cluster.key
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert cluster.key not in (folder / "run.json").read_text()
    assert stat.S_IMODE((folder / "launch.sh").stat().st_mode) == 0o700
    told = cluster.report(0)
    assert (told["state"], told["alive"], told["run_id"]) == ("staged", False, cluster.run_id)


@pytest.mark.parametrize(
    "change",
    [{"gang": "../x"}, {"gang": "a/b"}, {"run_id": ".."}, {"run_id": 5}, {"leader": {}}, {"gpus": "abc"}],
    ids=str,
)
def test_a_request_that_is_none_is_refused_in_words(gang: Gang, change: dict[str, object]) -> None:
    with pytest.raises(DeployError) as refused:
        stage.stage({**gang().staging(0), **change})
    assert refused.value.kind == "bad-request"


def test_a_state_folder_that_may_not_be_written_is_told(gang: Gang) -> None:
    with pytest.raises(DeployError, match=r"Not a directory|File exists|Permission"):
        stage.stage({**gang().staging(0), "state_dir": "/dev/null/x"})


def log_lines(cluster: Cluster, lines: int) -> bytes:
    from orchestrator.node import dispatch

    request = f'{{"state_dir": "{cluster.state_dir(0)}", "gang": "gang0", "lines": {lines}}}'
    command = dispatch.command("logs")
    return subprocess.run(command, input=request.encode(), capture_output=True, check=True, timeout=30).stdout


@pytest.mark.parametrize("lines", [0, 1, 3, 50_000, 200_000])
def test_the_last_lines_of_a_log(gang: Gang, lines: int) -> None:
    cluster = gang()
    folder = Path(stage.stage(cluster.staging(0))["folder"])
    assert log_lines(cluster, lines) == b""
    text = [b"%06d" % number for number in range(100_000)]
    (folder / "engine.log").write_bytes(b"\n".join(text))
    assert log_lines(cluster, lines).splitlines() == (text[-lines:] if lines else [])


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "killed by signal 9 (SIGKILL)"),
        (signal.SIGSEGV, "killed by signal 11 (SIGSEGV)"),
        (0, "exited"),
    ],
)
def test_how_a_process_died(reaped: bool, number: int, words: str) -> None:
    source = "import sys; sys.stdin.read(); sys.exit(7)"
    child = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE)
    assert child.stdin is not None
    pidfd, start = os.pidfd_open(child.pid), processes.start_of(child.pid)
    if number:
        child.send_signal(number)
    else:
        child.stdin.close()
    assert select.select([pidfd], [], [], 10)[0]
    if reaped:
        child.wait()
    death = supervision.death_of(child.pid, start, pidfd)
    child.wait()
    child.stdin.close()
    os.close(pidfd)
    if death != supervision.UNKNOWN or not reaped:  # before Linux 6.15 the status of a reaped process is lost
        assert death.words().startswith(words)
    assert not processes.alive(child.pid, start)
    assert not supervision.send(child.pid, start, signal.SIGTERM)


def test_a_report_waits_for_news_and_no_longer_than_asked(gang: Gang) -> None:
    from concurrent.futures import ThreadPoolExecutor

    cluster = gang()
    stage.stage(cluster.staging(0))
    mark = report.answer(cluster.base(0))["seen"]
    begin = time.monotonic()
    assert report.answer({**cluster.base(0), "seen": mark, "wait_s": 0.3})["seen"] == mark
    assert 0.3 <= time.monotonic() - begin < 5.0 * slack()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(report.answer, {**cluster.base(0), "seen": mark, "wait_s": 10.0})
        stage.stage({**cluster.staging(0), "run_id": "another"})
        told = waiting.result(timeout=5.0)
    assert told["seen"] != mark and told["reports"][0]["run_id"] == "another"
    assert report.answer({**cluster.base(0), "seen": mark, "wait_s": 10.0})["seen"] == told["seen"]


@pytest.mark.parametrize(
    "text",
    ['{"started_at": "soon"}', '{"state": "ready", "ranks": 5}', "[" * 100_000, "", "null", "no JSON", "\0\ud800"],
    ids=["a text for a time", "odd ranks", "nested deeply", "empty", "null", "words", "bytes"],
)
def test_a_report_that_can_not_be_read_neither_hides_an_agent_nor_keeps_it(gang: Gang, text: str) -> None:
    """A stopped agent writes no more: only the files on disk can be read."""
    cluster = gang()
    cluster.armed()
    cluster.signal_agent(1, signal.SIGSTOP)
    path = Path(cluster.state_dir(1), "gangs/gang0/runs", cluster.run_id, "report.json")
    path.write_text(text, errors="surrogateescape" if "\ud800" not in text else "surrogatepass")
    (told,) = report.answer(cluster.base(1))["reports"]
    assert (told["gang"], told["node"], told["alive"]) == ("gang0", "node1", True)
    assert isinstance(Report.read(told), Unreadable)
    stopped = cluster.stop(1, now=True, clear=True)
    assert (stopped["state"], stopped["alive"]) == ("stopped", False)
    assert isinstance(Report.read(cluster.report(1)), Report)
    cluster.stop(0, now=True, clear=True)
    cluster.nothing_left()
