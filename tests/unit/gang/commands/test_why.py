"""`why --log`: files as people have them, and files that are no logs."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import why
from orchestrator.gang.commands.gangs import MOST_EVIDENCE
from orchestrator.gang.history import FailureVerdict
from orchestrator.gang.steps.status import logs_read
from orchestrator.gang.steps.status.history import Explanation
from orchestrator.gang.view import GangView, NodeView
from orchestrator.loading import given_files
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.hang import Hang
from orchestrator.protocol.report import Cause

LOGS = Path(__file__).parents[2] / "gang" / "steps" / "status" / "logs"
RETRY, HEALTHY = LOGS / "ib-retry-230.log", LOGS / "transport-merged-ports.log"


def test_one_cause_its_lines_and_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--log", str(HEALTHY), str(RETRY)]) == 3
    said = capsys.readouterr().out
    assert "cause: n1: an RDMA port can't reach its peer" in said and "fix: test the two ports" in said
    assert "IBV_WC_RETRY_EXC_ERR(12)" in said and "NCCL 2.30.4" in said


def test_no_known_cause_is_said_with_the_engines_own_exception(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--log", str(LOGS / "vllm-unknown.log")]) == 0
    assert "no cause is known\n  the engine's own last exception: RuntimeError: nobody" in capsys.readouterr().out
    assert main(["why", "--log", str(LOGS / "vllm-unknown.log"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (
        told["cause"] is None and told["exception"].startswith("RuntimeError: nobody") and told["version"] == "0.11.1"
    )


def test_where_nothing_else_is_known_the_first_line_of_an_error_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text("I0717 07:30:06.1 9 x.cpp:1] up\nE0717 07:30:06.2 9 x.cpp:58] nobody has seen this\nE0717 later\n")
    assert main(["why", "--log", str(log)]) == 0
    assert "first line that tells of an error: " in (shown := capsys.readouterr().out) and "nobody has seen" in shown
    assert main(["why", "--log", str(log), "--json"]) == 0
    assert "nobody has seen this" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("h1:1:1 [0] NCCL WARN socketProgress: Connection closed by remote peer h2<33456>", "in the logs of h2"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:1", "logs of 10.0.0.4"),
        ("[c10d] The client socket has failed to connect to [10.0.0.3]:1 (errno: 111 - refused).", "of 10.0.0.3"),
        ("[2026-11-25 10:00:05] Received sigquit from a child process.", "logs of every other node and rank"),
        ("RuntimeError: Connection reset by peer (104)", "logs of every other node and rank"),
    ],
)
def test_echoes_alone_say_whose_log_to_read(
    line: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_bytes(b"\xef\xbb\xbfTraceback (most recent call last):\r\n" + line.encode() + b"\r\n")
    assert main(["why", "--log", str(tmp_path / "x.log")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no cause is known" in said and where in said


def test_nccls_first_warning_and_what_to_ask_for_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "node-a:275204:275658 [4] misc/socket.cc:415 NCCL WARN socketTryAccept: Accept failed: Bad file descriptor\n"
        "node-a:275204:275658 [4] NCCL INFO misc/socket.cc:559 -> 2\n"
    )
    assert main(["why", "--log", str(log)]) == 0
    said = capsys.readouterr().out
    assert "NCCL's first warning: socketTryAccept: Accept failed: Bad file descriptor" in said
    assert "next: NCCL says more with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET" in said
    assert "recognised" not in said and "echoes" not in said


def test_an_exception_without_its_traceback_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.log").write_text("(W pid=1) w.py:572] FooError: bar [repeated 3x]\nUserWarning: WeightError: no\n")
    assert main(["why", "--log", str(tmp_path / "x.log")]) == 0
    said = capsys.readouterr().out
    assert "last exception: FooError: bar" in said and "was recognised" not in said


def test_a_failure_of_nccl_alone_asks_for_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.log").write_text("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)\n")
    assert main(["why", "--log", str(tmp_path / "x.log")]) == 0
    assert "NCCL_DEBUG=WARN in l40s_env" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "next_line"),
    [
        ("RuntimeError: Engine core initialization failed. See root cause above.", "another process ended: ask for"),
        ("[2026-11-25 10:00:05 TP0] Decode batch. #running-req: 1, #token: 9", "if it stands still, for NCCL_DEBUG"),
    ],
    ids=["pointer", "silent"],
)
def test_whose_words_to_ask_for_where_these_tell_nothing(
    line: str, next_line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_text(f"{line}\n")
    assert main(["why", "--log", str(tmp_path / "x.log")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no cause is known" in said and " next: " in said and next_line in said


def test_a_folder_has_one_log_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node0.log").write_text("RuntimeError: Connection reset by peer\n")
    (tmp_path / "node1.log.gz").write_bytes(gzip.compress(b"zmq.error.ZMQError: Address already in use"))
    (tmp_path / ".hidden").write_text("OSError: [Errno 24] Too many open files\n")
    assert main(["why", "--log", str(tmp_path), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["cause"]["id"], told["cause"]["node"]) == ("PORT-IN-USE", "node1")
    assert [one["node"] for one in told["secondary"]] == ["node0"]


def test_an_empty_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "--log", str(tmp_path)]) == 2
    assert "a folder of 0 files" in capsys.readouterr().err


def test_a_packed_log_and_a_named_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(b"zmq.error.ZMQError: Address already in use"))
    assert main(["why", "--log", f"node7={tmp_path}/x.log.gz", "--json"]) == 3
    cause = json.loads(capsys.readouterr().out)["cause"]
    assert (cause["id"], cause["node"]) == ("PORT-IN-USE", "node7")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(pack: type[bytes]) -> None:
    command = [sys.executable, "-m", "orchestrator.cli.main", "why", "--log", "-", "--json"]
    ran = subprocess.run(command, input=pack(RETRY.read_bytes()), capture_output=True, check=False, timeout=300)
    assert (ran.returncode, json.loads(ran.stdout)["cause"]["id"]) == (3, "IB-UNREACHABLE")


@pytest.mark.parametrize(
    "content", [b"\x7fELF\0\0", gzip.compress(bytes(99))[:-9], None], ids=["binary", "cut", "none"]
)
def test_what_is_no_log_is_refused_with_what_is_accepted(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert main(["why", "--log", str(tmp_path / "x")]) == 2
    assert main(["why", "--log", 99 * "a pasted line = no name, "]) == 2
    assert "text or gzip" in capsys.readouterr().err


def test_of_an_endless_log_beginning_and_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_files, "HEAD", 4096)
    monkeypatch.setattr(given_files, "TAIL", 1 << 20)
    (tmp_path / "x.log").write_text("first\n" + "between\n" * 400_000 + "last\n")
    lines = logs_read.log_files([str(tmp_path / "x.log")])["x"]
    assert (lines[0], lines[-2]) == ("first", "last") and len(lines) < 300_000


ENGINE_LINES = Path(__file__).parents[2] / "engines" / "lines"
WRITTEN = [
    *(row.rpartition("\t")[2] for name in ("sglang-0.4.4", "sglang-0.5", "ordinary", "remarks")
      for row in (ENGINE_LINES / f"{name}.txt").read_text("utf-8").splitlines()),
    "h1:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
    "(Worker_TP0 pid=1) INFO 11-20 10:00:00 [gpu_model_runner.py:1] Starting to load model x...",
    "(VllmWorker rank=1 pid=2587) INFO 08-18 06:39:05 [backends.py:527] compiles",
    "INFO 11-20 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s",
    "[2026-01-26 19:01:47] Prefill batch. #new-seq: 1",
]  # fmt: skip


def test_lines_of_an_engine_or_of_nccl_are_not_denied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {line: logs_read.read_logs({"x": [line]}) for line in WRITTEN}
    told = {
        line: (one.engine, one.nccl, one.lines_of, one.exception, one.error, one.cause, one.secondary)
        for line, one in seen.items()
    }
    assert [line for line, words in told.items() if not any(words)] == []
    (tmp_path / "x.log").write_text(WRITTEN[-1])
    assert main(["why", "--log", str(tmp_path / "x.log")]) == 0
    assert "lines that do not tell which engine wrote them" in capsys.readouterr().out
    (tmp_path / "x.log").write_text("a letter\nto nobody\n")
    assert main(["why", "--log", str(tmp_path / "x.log")]) == 0
    assert "no line of an engine or of NCCL was recognised" in capsys.readouterr().out


def test_which_hang_it_is_and_what_shows_it_stand_below_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    hang = Hang(name="HANG-RANK-BEHIND", evidence=tuple(f"sentence {number}" for number in range(9)))
    now = GangView(name="gang0", state=GangState.DEGRADED, trouble="hung", cause=replace(HANGS, hang=hang))
    why.show(Explanation(gang="gang0", verdict=None, now=now, failures={}), Screen(), everything=False)
    said = capsys.readouterr().out
    assert "HANG-RANK-BEHIND (`l40s-deploy doctor --explain HANG-RANK-BEHIND`)" in said
    assert "- sentence 0" in said and f"and {9 - MOST_EVIDENCE} more: see --json" in said


HANGS = Cause(node="node2", tp_rank=19, text="the engine may hang: no token for 20 s", fix="look at its log")
DIED = Cause(node="node1", tp_rank=9, text="GPU 1 has fallen off the bus (Xid 79)")


@pytest.mark.parametrize(
    ("state", "trouble", "first", "last"),
    [
        ("degraded", "slow", "gang0: degraded now (slow): M by S", "cause: node1 TP9: "),
        ("degraded", "hung", "gang0: degraded now (hung): M by S", "to have it serve again: l40s-deploy restart gang0"),
        ("failed", "", "gang0: M by S failed, 9 s ago", "to have it serve again: l40s-deploy restart gang0"),
        ("absent", "", "gang0: M by S failed, 9 s ago", "to have it serve again: l40s-deploy restart gang0"),
        ("starting", "", "gang0: M by S failed, 9 s ago", "gang0 is starting: l40s-deploy status --watch"),
        ("ready", "", "gang0: M by S failed, 9 s ago", "cause: node1 TP9: "),
    ],
)
def test_what_is_wrong_now_comes_first_and_the_command_last(
    state: str, trouble: str, first: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = HANGS if trouble else None
    now = GangView(name="gang0", state=GangState(state), model="M", stack="S", trouble=trouble, cause=cause)
    verdict = FailureVerdict(
        gang="gang0", run_id="r1", plan_id="p", model="M", stack="S", cause=DIED, secondary=(), ago_s=9.0, newest=True
    )
    why.show(Explanation(gang="gang0", verdict=verdict, now=now, failures={}), Screen(), everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(first) and lines[-1].startswith(last), lines
    assert "Xid 79" in "".join(lines) and ("TP19" in lines[1]) == bool(trouble)


@pytest.mark.parametrize(("name", "command"), [("gang0", "restart gang0"), ("router", "router up")])
def test_who_may_only_look_is_told_that_an_operator_is_needed(
    name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = GangView(name=name, state=GangState.FAILED, model="M", stack="S")
    for only_looks, start in ((True, "to have it serve again, an operator runs:"), (False, "to have it serve again:")):
        account = Explanation(gang=name, verdict=None, now=now, failures={}, only_looks=only_looks)
        why.show(account, Screen(), everything=False)
        assert capsys.readouterr().out.splitlines()[-1] == f"{start} l40s-deploy {command}"


UNREAD = NodeError("does not answer", where="node", fix="")


@pytest.mark.parametrize(
    ("unread", "words"),
    [
        ((), "gang0: no recorded run has failed"),
        (("node1",), "the nodes which answered have recorded has failed; not read: node1"),
        (("node0", "node1"), "gang0: whether a run has failed is not known: no node was read"),
    ],
)
def test_only_what_was_read_has_not_failed(
    unread: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = tuple(NodeView(name=f"node{rank}", node_rank=rank, state=NodeState.ABSENT) for rank in (0, 1))
    now = GangView(name="gang0", state=GangState.UNKNOWN if unread else GangState.ABSENT, nodes=nodes)
    account = Explanation(gang="gang0", verdict=None, now=now, failures=dict.fromkeys(unread, UNREAD))
    why.show(account, Screen(), everything=False)
    assert words in capsys.readouterr().out


def test_remarks_of_a_gang_that_serves_come_before_its_last_failure(capsys: pytest.CaptureFixture[str]) -> None:
    now = GangView(name="gang0", state=GangState.READY, remarks=("node2: mlx5_0 has failed in this run",))
    verdict = FailureVerdict(
        gang="gang0", run_id="r1", plan_id="p", model="M", stack="S", cause=DIED, secondary=(), ago_s=9.0, newest=False
    )
    why.show(Explanation(gang="gang0", verdict=verdict, now=now, failures={}), Screen(), everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["gang0: ready now, worth knowing:", "  node2: mlx5_0 has failed in this run"]


def test_what_two_gangs_say_alike_is_said_once_with_their_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"gang0": "node0: TP3 was stopped", "gang1": "node4: slow"}
    accounts = [
        Explanation(
            gang=name,
            verdict=None,
            now=GangView(name=name, state=GangState.READY, remarks=("the router's clients get HTTP 503", words)),
            failures={},
        )
        for name, words in own.items()
    ]
    monkeypatch.setattr(why, "why", lambda *_, **__: accounts)
    monkeypatch.setattr(why, "connected_cluster", lambda *_, **__: nullcontext())
    args = argparse.Namespace(log=[], gang=[], all=False, run="", json=False)
    why.run(args, Screen())
    assert capsys.readouterr().out.splitlines() == [
        "gang0, gang1: worth knowing of each:",
        "  the router's clients get HTTP 503",
        "gang0: ready now, worth knowing:",
        "  node0: TP3 was stopped",
        "gang0: no recorded run has failed",
        "gang1: ready now, worth knowing:",
        "  node4: slow",
        "gang1: no recorded run has failed",
    ]


def test_what_nodes_of_several_gangs_have_alike_is_said_once_with_the_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remarks = {"gang0": "node0, node1: no tuned config", "gang1": "node2: no tuned config", "gang2": "node9: mine"}
    accounts = []
    for place, (name, remark) in enumerate(remarks.items()):
        nodes = tuple(
            NodeView(name=f"node{2 * place + rank}", node_rank=rank, state=NodeState.ABSENT) for rank in range(2)
        )
        now = GangView(name=name, state=GangState.READY, remarks=(remark,), nodes=nodes)
        accounts.append(Explanation(gang=name, verdict=None, now=now, failures={}))
    monkeypatch.setattr(why, "why", lambda *_, **__: accounts)
    monkeypatch.setattr(why, "connected_cluster", lambda *_, **__: nullcontext())
    why.run(argparse.Namespace(log=[], gang=[], all=False, run="", json=False), Screen())
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["gang0, gang1: worth knowing of each:", "  node0, node1, node2: no tuned config"]
    assert "  node9: mine" in lines and sum("tuned" in line for line in lines) == 1
