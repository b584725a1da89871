"""Real agents with a scripted engine: go, ready, and every kind of end."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.gang import WATCH, Gang
from tests.support.waiting import slack, until

from orchestrator.node import files
from orchestrator.node.verbs import orders
from orchestrator.protocol.verbs import StopAnswer


def catches(pid: int, number: int) -> bool:
    """The process has a handler for a signal (SigCgt, proc(5))."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_gang_becomes_ready_with_every_rank_and_a_canary(gang: Gang) -> None:
    cluster = gang(nodes=3).ready()
    for node in range(3):
        told = cluster.report(node)
        assert told["alive"] and told["cause"] is None and told["silent"] == []
        assert [rank["state"] for rank in told["ranks"]] == ["alive", "alive"]
        assert [rank["tp_rank"] for rank in told["ranks"]] == [2 * node, 2 * node + 1]
    leader = cluster.report(0)
    assert leader["canary_text"] == " Paris" and leader["service_healthy"] is True
    assert cluster.report(1)["service_healthy"] is None
    assert cluster.report(1)["phase"]["name"] == "ready"
    assert [answer["state"] for answer in cluster.stop_all()] == ["stopped"] * 3


def test_a_killed_rank_is_named_and_ends_everybody_although_nobody_else_cares(gang: Gang) -> None:
    cluster = gang(nodes=3).ready()
    begin = time.monotonic()
    cluster.kill_rank(3)
    until(lambda: cluster.report(1)["state"] == "failed", 2.0)
    assert time.monotonic() - begin < 1.0 * slack()
    until(lambda: not cluster.engine_processes(), 5.0)
    cluster.nothing_left()
    cause = cluster.report(1)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"], cause["secondary"]) == ("node1", 3, 9, False)
    assert cluster.states() == ["failed"] * 3
    for other in (0, 2):
        told = cluster.report(other)
        assert told["cause"]["secondary"] is True
        assert (told["verdict"]["node"], told["verdict"]["tp_rank"]) == ("node1", 3)


def test_a_members_rank_that_was_told_to_exit_does_not_outrun_the_leaders_end(gang: Gang) -> None:
    cluster = gang(nodes=2, env={0: {"FAKE_TERM": "slow"}}).ready()
    until(lambda: catches(cluster.rank_pid(2), signal.SIGUSR1))
    os.kill(cluster.report(0)["engine_pid"], signal.SIGTERM)
    cluster.kill_rank(2, signal.SIGUSR1)
    cluster.nothing_left()
    assert cluster.states() == ["failed", "failed"]
    assert [cluster.report(node)["verdict"]["node"] for node in (0, 1)] == ["node0", "node0"]
    assert cluster.report(1)["cause"]["secondary"] is True


def test_a_members_rank_that_exits_although_nobody_told_it_to_is_named(gang: Gang) -> None:
    cluster = gang(nodes=2).ready()
    until(lambda: catches(cluster.rank_pid(2), signal.SIGUSR1))
    cluster.kill_rank(2, signal.SIGUSR1)
    cluster.failed()
    cause = cluster.report(0)["verdict"]
    assert (cause["node"], cause["tp_rank"], cause["exit_code"]) == ("node1", 2, 0)


@pytest.mark.turns
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT], ids=["SEGV", "ABRT"])
@pytest.mark.parametrize("tp_rank", [None, 1], ids=["parent", "rank"])
def test_a_signal_is_read_from_the_kernel_and_a_parents_comes_first(
    gang: Gang, tp_rank: int | None, number: int
) -> None:
    cluster = gang(nodes=1, env={-1: {"FAKE_TIED": "1"} if tp_rank is None else {}}).ready()
    os.kill(cluster.process(0, "launcher" if tp_rank is None else str(tp_rank)), number)
    cluster.failed()
    cause = cluster.report(0)["cause"]
    assert (cause["tp_rank"], cause["signal"]) == (tp_rank, number)
    assert tp_rank is not None or "parent" in cause["text"]


KILLED = {
    "launcher": "the engine's parent process was killed by signal 9",
    "engine::detokenizer": "the engine's process engine::detokenizer (pid {pid}) was killed by signal 9",
    "guardian": "the engine's guardian process (pid {pid}) was killed by signal 9",
    "agent": "the agent on {node} ended (reported by its guardian process)",
    "1": "TP1 on GPU 1 (pid {pid}) was killed by signal 9",
    "2": "TP2 on GPU 0 (pid {pid}) was killed by signal 9",
}
TIES = {
    "tied": {"FAKE_TIED": "1"},
    "slow-ranks": {"FAKE_TIED": "1", "FAKE_DEATHS": "ranks"},
    "all-slow": {"FAKE_TIED": "1", "FAKE_DEATHS": "all"},
    "noticing": {"FAKE_TIED": "poll"},
}


def _kills() -> Iterator[Any]:
    """Each process, on each node, 20 times: its end takes those below with it in different ways."""
    ways = itertools.cycle(TIES.items())
    for which, node, turn in itertools.product(KILLED, (0, 1), range(20)):
        how, env = next(ways)
        name = f"{which}-node{node}-{turn}"
        if not which.isdigit() or node == int(which) // 2:
            kind = "rank" if which.isdigit() else which
            yield pytest.param(which, node, env, id=f"{name}-{how}", marks=pytest.mark.turns(of=f"killed: {kind}"))


@pytest.mark.parametrize(("which", "node", "env"), [*_kills()])
def test_of_processes_that_die_with_one_another_the_killed_one_is_named(
    gang: Gang, which: str, node: int, env: dict[str, str]
) -> None:
    """Those below a killed process end in any order, some before its own end shows."""
    cluster = gang(nodes=2, env={-1: {**env, "FAKE_OTHERS": "engine::detokenizer", "FAKE_ORPHAN": "1"}}).ready()
    until(lambda: cluster.watches(node, cluster.process(node, "engine::detokenizer")), 10.0, "it is watched")
    victim = cluster.process(node, which)
    os.kill(victim, signal.SIGKILL)
    cluster.nothing_left()
    other = cluster.report(1 - node)
    causes = [other["verdict"] or other["cause"]]  # no leader's agent, no verdict
    causes += [cluster.report(node)["cause"]] if which != "agent" else []
    for cause in causes:
        assert (cause["node"], cause["tp_rank"]) == (f"node{node}", int(which) if which.isdigit() else None), cause
        assert KILLED[which].format(pid=victim, node=f"node{node}") in cause["text"], cause
        assert cause["fix"], cause
    assert other["cause"]["secondary"] or which == "agent"
    dead = cluster.report(node)
    assert which != "agent" or (dead["alive"], {rank["state"] for rank in dead["ranks"]}) == (False, {"dead"})


@pytest.mark.turns
@pytest.mark.parametrize("frozen", [0, 1])
def test_silence_is_shown_and_ends_the_gang_when_the_lease_runs_out(gang: Gang, frozen: int) -> None:
    cluster = gang(nodes=2, lease_s=2.0).ready()
    cluster.signal_agent(frozen, signal.SIGSTOP)
    other = 1 - frozen
    until(lambda: cluster.report(other)["state"] == "failed", 6.0)
    assert "no heartbeat" in cluster.report(other)["cause"]["text"]
    assert cluster.report(other)["cause"]["node"] == f"node{frozen}"
    cluster.nothing_left(20.0)  # its guardian ends it


def test_in_good_order_the_leaders_parent_drains_first(gang: Gang) -> None:
    cluster = gang(nodes=2, env={0: {"FAKE_TERM": "slow"}}).ready()
    answers = cluster.stop_all()
    assert [(answer["state"], answer["left_behind"]) for answer in answers] == [("stopped", [])] * 2
    cluster.nothing_left()
    assert "gracefully exiting" in cluster.log(0).read_text()
    assert "SIGTERM ignored" not in cluster.log(1).read_text()
    assert cluster.report(1)["cause"] is None


@pytest.mark.turns
@pytest.mark.parametrize("now", [False, True])
def test_an_engine_that_does_not_drain_is_ended_after_its_patience_or_now(gang: Gang, now: bool) -> None:
    cluster = gang(nodes=2, env={0: {"FAKE_TERM": "ignore"}}).ready()
    begin = time.monotonic()
    assert [answer["state"] for answer in cluster.stop_all(now=now)] == ["stopped"] * 2
    assert not now or time.monotonic() - begin < 2.5 * slack()
    cluster.nothing_left()


def test_a_refused_canary_fails_the_gang(gang: Gang) -> None:
    cluster = gang(nodes=2, env={0: {"FAKE_TEXT": " !!!!"}})
    cluster.start()
    cluster.failed()
    cause = cluster.report(0)["cause"]
    assert "canary" in cause["text"] and "!!!!" in cause["text"]


TRACEBACK = (
    '[TP2] hit an exception: Traceback (most recent call last):|  File "/srt/fa3.py", line 3, in f|ImportError: x'
)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("[TP3] CUDA out of memory: 1 GiB", ("oom", 3, "use less of it", False)),
        ("[TP3] Connection closed by peer", ("peer", 3, "look for the first one", True)),
        (TRACEBACK, ("EXCEPTION", 2, "no known cause matches: read the traceback", False)),
    ],
    ids=["known", "follows from another's death", "unknown"],
)
def test_an_engine_that_exits_is_explained_by_its_log(
    gang: Gang, lines: str, cause: tuple[str, int, str, bool]
) -> None:
    cluster = gang(nodes=2, env={1: {"FAKE_EXIT": "3", "FAKE_LINES": lines}})
    cluster.start()
    cluster.failed()
    signature, tp_rank, fix, secondary = cause
    told = cluster.report(0)["verdict"]
    assert secondary or cluster.report(1)["cause"] == told
    assert (told["node"], told["signature"], told["tp_rank"]) == ("node1", signature, tp_rank)
    assert told["secondary"] is secondary
    assert told["fix"].startswith(fix) and "exited with code 3" in told["text"]
    assert lines.rsplit("|", 1)[-1] in told["lines"]
    assert signature != "EXCEPTION" or told["text"].startswith("engine process exited: ImportError: x (/srt/fa3.py:3)")


def test_a_flood_of_log_lines_is_bounded_and_hinders_nothing(gang: Gang) -> None:
    cluster = gang(nodes=1, env={0: {"FAKE_FLOOD": "3000000"}}, changes={0: {"log_limit": 1_000_000}}).ready()
    folder = cluster.log(0).parent
    assert sum(path.stat().st_size for path in folder.glob("engine.log*")) <= 2_000_000
    cluster.stop_all(now=True)


def test_go_to_the_leader_alone_reaches_everybody(gang: Gang) -> None:
    cluster = gang(nodes=2)
    cluster.armed()
    orders.go(cluster.base(0))
    until(lambda: cluster.states() == ["ready", "ready"], 10.0)
    cluster.stop_all(now=True)


def test_a_hung_engine_is_told_from_a_slow_one_and_from_one_that_works(gang: Gang, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    cluster = gang(nodes=1, env={0: {"FAKE_STUCK": str(stuck)}}).ready()
    until(lambda: cluster.report(0)["service_state"] == "well", 5.0)
    stuck.write_text("0.3")
    until(lambda: cluster.report(0)["service_state"] == "slow", 5.0)
    until(lambda: cluster.report(0)["service_state"] == "hung", 5.0)
    told = cluster.report(0)
    assert told["state"] == "ready" and told["alive"]
    assert told["trouble"]["text"].startswith("the engine hangs: /health_generate: HTTP 503; no new token, log line or")
    stuck.unlink()
    until(lambda: cluster.report(0)["service_state"] == "well", 5.0)
    assert cluster.report(0)["trouble"] is None
    cluster.stop_all(now=True)


@pytest.mark.turns(of="agent: a stopped process shows")
def test_a_stopped_rank_shows_and_is_not_dead(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    cluster.kill_rank(1, signal.SIGSTOP)
    until(lambda: [rank["state"] for rank in cluster.report(0)["ranks"]] == ["alive", "stopped"], 5.0)
    cluster.kill_rank(1, signal.SIGCONT)
    until(lambda: [rank["state"] for rank in cluster.report(0)["ranks"]] == ["alive", "alive"], 5.0)
    cluster.kill_rank(1, signal.SIGSTOP)
    cluster.stop_all(now=True)


def test_a_lone_rank_has_no_number_in_its_title_and_its_end_is_forgotten_by_down_only(gang: Gang) -> None:
    cluster = gang(nodes=1, ranks_each=1, env={0: {"FAKE_TITLE": "engine::rank"}}).ready()
    assert [rank["state"] for rank in cluster.report(0)["ranks"]] == ["alive"]
    cluster.kill_rank(0)
    cluster.failed()
    assert cluster.stop(0)["state"] == "failed"
    assert cluster.stop(0, clear=True) == StopAnswer(state="stopped").as_json()
    assert cluster.report(0)["cause"]["tp_rank"] == 0


def test_secrets_are_neither_in_the_log_nor_in_a_cause(gang: Gang) -> None:
    line = "[TP0] out of memory with api_key=sk-very-secret and hf-token-value"
    env = {"FAKE_EXIT": "3", "FAKE_LINES": line, "HF_TOKEN": "hf-token-value"}
    cluster = gang(nodes=1, env={0: env}, changes={0: {"secrets": {"redact": ["sk-very-secret"]}}})
    cluster.start()
    cluster.failed()

    clean = "[TP0] out of memory with api_key=[redacted] and [redacted]"
    assert clean in cluster.report(0)["cause"]["lines"]
    folder = cluster.log(0).parent
    assert (folder / "engine.log").read_text().splitlines() == [clean]
    told = [(folder / name).read_text() for name in ("report.json", "events.jsonl", "agent.log")]
    assert "very-secret" not in "".join(told) and "token-value" not in "".join(told)


@pytest.mark.turns(of="agent: who is not heard")
def test_each_agent_says_whom_it_hears_and_one_that_goes_on_is_left_alone(gang: Gang) -> None:
    cluster = gang(nodes=3, lease_s=6.0).ready()
    until(lambda: cluster.report(0)["links"] == {"node1": "heard", "node2": "heard"}, 3.0)
    assert cluster.report(2)["links"] == {"node0": "heard"}
    cluster.signal_agent(2, signal.SIGSTOP)
    until(lambda: cluster.report(0)["links"] == {"node1": "heard", "node2": "silent"}, 5.0)
    assert cluster.report(0)["silent"] == ["node2"]
    cluster.signal_agent(2, signal.SIGCONT)
    until(lambda: cluster.report(0)["links"]["node2"] == "heard" and cluster.report(0)["silent"] == [], 3.0)
    assert cluster.states() == ["ready"] * 3, "it went on within its lease"


def test_stop_ends_a_stopped_agent_at_once(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    cluster.signal_agent(0, signal.SIGSTOP)
    began = time.monotonic()
    (answer,) = cluster.stop_all()
    assert (answer["alive"], answer["left_behind"]) == (False, [])
    assert time.monotonic() - began < cluster.lease_s * slack()
    cluster.nothing_left()


@pytest.mark.turns(of="agent: who is not heard")
def test_a_leader_that_hears_nobody_any_more_names_itself(gang: Gang) -> None:
    cluster = gang(nodes=3, lease_s=3.0).ready()
    for member in (1, 2):
        cluster.signal_agent(member, signal.SIGSTOP)
    until(lambda: cluster.report(0)["state"] == "failed", 15.0)
    cause = cluster.report(0)["cause"]
    assert (cause["node"], "is disconnected" in cause["text"]) == ("node0", True)
    cluster.nothing_left()


@pytest.mark.turns(of="agent: a stopped process shows")
def test_a_stopped_parent_is_remarked_on(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    parent = cluster.report(0)["engine_pid"]
    os.kill(parent, signal.SIGSTOP)
    until(lambda: any(f"(pid {parent}) was stopped by a signal" in words for words in cluster.report(0)["remarks"]))
    os.kill(parent, signal.SIGCONT)
    until(lambda: not any("stopped" in words for words in cluster.report(0)["remarks"]))


def test_what_the_log_proves_is_reported_and_what_it_does_not_is_remarked_on(gang: Gang) -> None:
    cluster = gang(nodes=1)
    proofs = [{"id": "A", "pattern": "warming up", "text": "this"}, {"id": "B", "pattern": "never", "text": "that"}]
    cluster.changes[0] = {"watch": {**WATCH, "proofs": proofs}}
    cluster.ready()
    until(lambda: cluster.report(0)["proved"] == ["this"])
    until(lambda: any(words.startswith("the plan asks for that") for words in cluster.report(0)["remarks"]))
    assert not any("asks for this" in words for words in cluster.report(0)["remarks"])


@pytest.mark.turns
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT], ids=["full", "read-only", "quota"])
def test_an_order_to_stop_needs_no_room_on_the_disk(gang: Gang, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    cluster = gang(nodes=1).ready()
    folder = files.current_run(cluster.state_dir(0), "gang0")
    assert folder is not None
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(files, "write_json", full)
        assert orders.tell(folder, "stop-now")
    until(lambda: not cluster.report(0)["alive"], 10.0)
    assert cluster.report(0)["state"] == "stopped"
    cluster.nothing_left()


def test_temporary_files_go_with_their_run(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    environ = Path(f"/proc/{cluster.rank_pid(0)}/environ").read_bytes().split(b"\0")
    (place,) = (Path(os.fsdecode(word[7:])) for word in environ if word.startswith(b"TMPDIR="))
    assert place.is_dir()
    (place / "tmpab").mkdir()
    cluster.stop_all(now=True)
    assert not place.exists()
