"""NCCL's RAS: answers in the format of NCCL's manual (troubleshooting, RAS), and queries with time limits."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import until

from l40s_lab.standin import ras as standin
from orchestrator.gang.view import GangView, view
from orchestrator.node.agent import causes
from orchestrator.node.engine import ras
from orchestrator.node.engine.ras import Inquiry, status
from orchestrator.node.engine.ras_words import Member, RasAnswer, RasVerdict, judge, read
from orchestrator.protocol.report import AgentState, Cause, RankReport, RankState, Report

MISSING = """{
  "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
  "communicators": [{
    "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
    "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
    "ranks": [{
      "rank": 0, "host": "172.16.64.245", "pid": 1524344, "cuda_dev": 0, "nvml_dev": 0,
      "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false,
                 "abort_flag": false},
      "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0}
    }],
    "missing_ranks": [{
      "rank": 1, "host": "172.16.64.245", "pid": 1524345, "cuda_dev": 1, "nvml_dev": 1,
      "status": {"unresponsive": true, "considered_dead": false}
    }]
  }],
  "ras": {"collection_time_sec": 0.000, "timeouts_count": 0}
}
"""


def answer(counts: dict[int, int] | None = None, *, dead: int | None = None, size: int = 32) -> str:
    """Of a gang of 32 ranks on four nodes; counts: AllReduce operations of ranks that are behind the others' 6650."""
    document = json.loads(MISSING)
    (communicator,) = document["communicators"]
    there, missing = communicator["ranks"][0], communicator["missing_ranks"][0]
    status = {**missing["status"], "considered_dead": True}
    communicator["size"] = size
    communicator["missing_ranks"] = [{**missing, **place(dead), "status": status}] if dead is not None else []
    communicator["ranks"] = [
        {**there, **place(rank), "collective_counts": {"AllGather": 12, "AllReduce": (counts or {}).get(rank, 6650)}}
        for rank in range(size)
        if rank != dead
    ]
    return json.dumps(document)


def place(rank: int | None) -> dict[str, object]:
    node, gpu = divmod(rank or 0, 8)
    return {"rank": rank, "host": f"172.16.64.{211 + node}", "pid": 3487979 + (rank or 0) % 8, "nvml_dev": gpu}


LOST = Member(21, "172.16.64.213", 3487984, 5)
ONE_BEHIND, DEAD, FINE = answer({21: 6649}), answer(dead=21), answer()
MISMATCH = answer(dict.fromkeys((16, 18, 19, 20, 21, 23), 6649))
NODES = {"172.16.64.213": "node2", "172.16.64.245": "node7", "127.0.0.1": "node0"}


def test_the_manual_s_answers_are_read() -> None:
    assert read(MISSING) == RasAnswer(2, ((Member(1, "172.16.64.245", 1524345, 1), False),))
    assert read(DEAD) == RasAnswer(32, ((LOST, True),))
    assert read(FINE) == RasAnswer(32)
    assert read(ONE_BEHIND).behind == ((LOST, "AllReduce", 6649, 6650),)
    assert len(read(MISMATCH).behind) == 6


def test_one_rank_is_named_where_ras_can_name_one() -> None:
    def words(first: str, again: str) -> RasVerdict:
        return judge(read(first), read(again), NODES)

    assert words(MISSING, MISSING) == RasVerdict(
        "NCCL RAS gets no answer from rank 1 (pid 1524345, GPU 1 of node7)", Member(1, "172.16.64.245", 1524345, 1)
    )
    assert words(FINE, DEAD).words == (
        "NCCL RAS gets no answer from rank 21 (pid 3487984, GPU 5 of node2), and considers it dead"
    )
    assert words(ONE_BEHIND, ONE_BEHIND) == RasVerdict(
        "NCCL RAS: rank 21 (pid 3487984, GPU 5 of node2) launched 6649 of 6650 AllReduce operations,"
        " unchanged between two queries",
        LOST,
    )
    assert words(MISMATCH, MISMATCH).culprit is None and "and 2 more" in words(MISMATCH, MISMATCH).words


def test_where_it_cannot_name_one_it_says_why() -> None:
    for first, again in ((FINE, FINE), (MISMATCH, FINE), (MISMATCH, MISMATCH.replace("66", "77"))):
        said = judge(read(first), read(again), NODES)
        assert said.culprit is None
        assert "can't name the rank" in said.words and "captured in CUDA graphs" in said.words


def test_an_error_of_a_rank_is_named() -> None:
    document = json.loads(MISSING)
    communicator = document["communicators"][0]
    communicator["missing_ranks"] = []
    communicator["ranks"][0]["status"]["async_error"] = 6
    seen = read(json.dumps(document))
    assert judge(seen, seen, NODES).words == "NCCL RAS: rank 0 (pid 1524344, GPU 0 of node7) reports ncclRemoteError"


KEYS = st.sampled_from(["communicators", "ranks", "missing_ranks", "size", "x"])
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(KEYS, one)
).map(json.dumps)


@given(st.text() | DOCUMENTS)
def test_anything_else_is_no_answer_and_no_defect(text: str) -> None:
    try:
        read(text)
    except ValueError:
        return


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """One connection after another, as RAS accepts them."""
    listener = socket.create_server(("127.0.0.1", 0))

    def live() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def playing(text: str, *, knows_json: bool = True) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for line in connection.makefile():
            if line.endswith("STATUS\n"):
                connection.sendall(text.encode())
                return
            known = knows_json or line.startswith("TIMEOUT")
            connection.sendall(b"OK\n" if known else b"ERROR: Unknown command\n")

    return serve


def test_an_answer_is_asked_for_in_json_which_an_older_one_does_not_know() -> None:
    with server(playing(MISSING)) as address:
        assert status(address) == MISSING
    with server(playing("", knows_json=False)) as address, pytest.raises(ValueError, match="ERROR: Unknown command"):
        status(address)


def test_a_process_that_does_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "FIRST_WORD_S", 0.2)
    silent = [True, True, False]

    def serve(connection: socket.socket) -> None:
        if silent.pop(0):
            connection.recv(1 << 16)
            time.sleep(0.4)
        else:
            playing(FINE)(connection)

    with server(serve) as address:
        monkeypatch.setattr(ras, "FIRST_WORD_S", 1.0)
        assert status(address) == FINE


def test_what_never_ends_or_is_too_long_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "MOST_BYTES", 1 << 20)

    def flood(connection: socket.socket) -> None:
        for _ in range(2):
            connection.recv(4096)
            connection.sendall(b"OK\n")
        connection.recv(4096)
        while True:
            connection.sendall(b"x" * 65536)

    with server(flood) as address, pytest.raises(ValueError, match="longer than"):
        status(address)


def test_an_inquiry_is_asked_once_and_forgotten_when_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "APART_S", 0.01)
    with server(playing(MISSING)) as address:
        inquiry = Inquiry(address, NODES)
        inquiry.follow(0.0, still=False)
        assert inquiry.verdict is None
        inquiry.follow(1.0, still=True)
        until(lambda: inquiry.verdict is not None, 10.0)
    inquiry.follow(2.0, still=True)  # not again so soon: nothing listens any more, and the answer stays
    assert culprit(inquiry) == 1

    def forgotten() -> bool:
        inquiry.follow(3.0, still=False)  # not while it asks
        return inquiry.verdict is None

    until(forgotten, 10.0)


def culprit(inquiry: Inquiry) -> int:
    assert inquiry.verdict is not None and inquiry.verdict.culprit is not None
    return inquiry.verdict.culprit.rank


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "is off or missing in this NCCL"),
        ("127.0.0.1:1", "could not be asked: "),
        ("nonsense", "could not be asked: "),
    ],
)
def test_without_ras_it_is_said(address: str, words: str) -> None:
    inquiry = Inquiry(address, NODES)
    inquiry.follow(0.0, still=True)
    until(lambda: inquiry.verdict is not None, 20.0)
    assert inquiry.verdict is not None and words in inquiry.verdict.words


STILL = Cause(node="node0", text="no token", at=1.0)


def test_the_cause_names_the_rank_that_is_waited_for() -> None:
    said = judge(read(MISSING), read(MISSING), NODES)
    waits = ("GPU 0: 100 % busy at 88 of 350 W: it waits",)
    cause = causes.hung(Cause(node="node0", text="no token for 60 s", lines=waits), "gang0", said, NODES)
    assert cause.node == "node7" and cause.lines == waits
    assert cause.text == f"the engine hangs: no token for 60 s; {said.words}"
    assert causes.hung(STILL, "gang0").text == "the engine hangs: no token"


def hung_gang(text: str, pids: dict[str, list[int]]) -> GangView:
    """A hung gang whose leader's RAS has said so; pids: of each node's ranks, GPU by GPU."""
    trouble = causes.hung(STILL, "gang0", judge(read(text), read(text), NODES), NODES)
    reports, rank = {}, 0
    for number, (name, own) in enumerate(pids.items()):
        leads = number == 0
        reports[name] = Report(
            run_id="r", gang="g", node=name, node_rank=number, nnodes=len(pids), state=AgentState.READY, now=10.0,
            updated_at=10.0, service_url="http://x" if leads else "", service_healthy=True if leads else None,
            service_checked_at=9.0, service_state="hung" if leads else "", trouble=trouble if leads else None,
            ranks=tuple(RankReport(tp_rank=rank + gpu, gpu=gpu, pid=pid, state=RankState.ALIVE)
                        for gpu, pid in enumerate(own)),
        )  # fmt: skip
        rank += len(own)
    return view("g", reports)


@pytest.mark.parametrize(
    ("text", "node", "pids", "tp_rank"),
    [
        pytest.param(ONE_BEHIND, "node2", range(3487979, 3487987), 13, id="the process is its node's sixth"),
        pytest.param(DEAD, "node2", range(3487979, 3487987), 13, id="one that does not answer"),
        pytest.param(MISSING, "node7", [1524344, 1524345], 9, id="rank 1 of a communicator of two"),
        pytest.param(ONE_BEHIND, "node2", range(1, 9), None, id="a container's own process ids"),
        pytest.param(ONE_BEHIND, "node2", [3487984, *range(1, 8)], None, id="the same number of another GPU"),
        pytest.param(MISMATCH, "node2", range(3487979, 3487987), None, id="six of them"),
        pytest.param(FINE, "node2", range(3487979, 3487987), None, id="nobody"),
    ],
)
def test_the_rank_of_the_gang_is_named_by_the_process(
    text: str, node: str, pids: Sequence[int], tp_rank: int | None
) -> None:
    """RAS counts ranks in a communicator: 21 of 32, or 1 of 2; the gang's TP ranks are those of its agents."""
    seen = hung_gang(text, {"node0": list(range(100, 108)), node: list(pids)})
    assert seen.trouble == "hung" and seen.cause is not None
    assert seen.cause.tp_rank == tp_rank
    named = tp_rank is not None or text == ONE_BEHIND
    assert seen.cause.node == (node if named else "node0")


def test_the_stand_in_s_answers_are_of_the_documented_form() -> None:
    now = time.monotonic()
    ranks = {rank: {"pid": 100 + rank, "gpu": rank, "host": "127.0.0.1", "at": now} for rank in range(4)}
    ranks[3]["at"] = now - 60
    seen = read(standin._json(ranks, "2.30.7"))
    assert (seen.ranks, [(one.pid, one.gpu, dead) for one, dead in seen.missing]) == (4, [(103, 3, False)])
    ranks[3]["at"] = now
    assert read(standin._json(ranks, "2.30.7")).missing == ()
    documented = json.loads(MISSING)["communicators"][0]
    played = json.loads(standin._json(ranks, "2.30.7"))["communicators"][0]
    assert played.keys() == documented.keys()
    assert played["ranks"][0].keys() == documented["ranks"][0].keys()
    assert played["ranks"][0]["status"].keys() == documented["ranks"][0]["status"].keys()


def test_without_a_thread_it_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def refused(thread: threading.Thread) -> None:
        begun.append(thread.name)
        raise RuntimeError("can't start new thread")

    inquiry = Inquiry("", NODES)
    monkeypatch.setattr(threading.Thread, "start", refused)
    for now in (0.0, 1.0, ras.AGAIN_S):
        inquiry.follow(now, still=True)
    assert begun == ["ras"] * 2 and inquiry.verdict is None
