"""Which hang it is: a table of what nodes gathered, and the class that it shows; with something unread, never it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.engines.hang_kinds import KINDS, SEEN_IN
from orchestrator.gang.hangs import FRESH_S, HangEvidence, classify, with_hang
from orchestrator.gang.overview import cause_json
from orchestrator.protocol.hang import GpuLook, HangFacts, HangLook, PortLook, RankLook, RasLook, RasRank
from orchestrator.protocol.report import Cause

C10D = "torch/distributed/distributed_c10d.py"
ATTENTION = (f"all_reduce ({C10D}:2810)", "attention (model.py:7)", "forward (model.py:3)")
LOGITS = (f"all_gather ({C10D}:3000)", "logits (model.py:11)", "forward (model.py:4)")
REPLAY = ("CUDAGraph.replay (torch/cuda/graphs.py:88)", "decode (runner.py:8)")
ON_GPU = ("Event.synchronize (torch/cuda/streams.py:230)", "result (scheduler.py:40)")
SLEEPS = ("slow_step (model.py:12)", "forward (model.py:3)")
TUNES = ("AutoTuner.choose_one (flashinfer/autotuner.py:700)", "warm (runner.py:1)")
REQUESTS = (f"broadcast ({C10D}:1)", "recv_requests (s.py:1)")
IDLE = ("Scheduler.recv_requests (sglang/srt/managers/scheduler.py:900)",)
STILL = PortLook(name="mlx5_0:1", state="4: ACTIVE", apart_s=2.0)
SPIN = GpuLook(index=0, utilization=100)
BETWEEN = HangFacts(nccl="2.27.3", nnodes=2, rdma=True, roce=True, serving_s=60.0, p2p_off=False)


def rank(number: int, *stacks: tuple[str, ...], **more: Any) -> RankLook:
    twice = stacks * 2 if len(stacks) == 1 else stacks
    return RankLook(**{"tp_rank": number, "pid": 100 + number, "states": ("S", "S"), "stacks": twice, **more})


def on(*ranks: RankLook, **more: Any) -> HangEvidence:
    """Half of the ranks a node; what is added is so on both."""
    half = (len(ranks) + 1) // 2
    parts = {"n0": ranks[:half], "n1": ranks[half:]}
    looks = {
        name: HangLook(**{"node": name, "facts": BETWEEN, "ports": (STILL,), **more, "ranks": part})
        for name, part in parts.items()
    }
    return HangEvidence(looks=looks)


def four(*stacks: tuple[str, ...], **more: Any) -> HangEvidence:
    return on(*(rank(number, stacks[min(number, len(stacks) - 1)]) for number in range(4)), **more)


def last(*stacks: tuple[str, ...], **more: Any) -> HangEvidence:
    """Three ranks in one collective, and the last one so."""
    return on(*(rank(number, ATTENTION) for number in range(3)), rank(3, *stacks, **more))


def facts(**more: Any) -> HangFacts:
    return replace(BETWEEN, **more)


REGISTERS = facts(nccl="2.31.2", registers=True)
LATE = RasRank(node="n1", pid=103, operation="AllReduce", launched=9, most=10)
RAS = RasLook(launched=(40, 40), behind=(RasRank(node="n1", pid=103, operation="AllReduce", launched=9, most=10),))
AHEAD = RasLook(
    launched=(40, 40), behind=tuple(replace(LATE, node=f"n{pid // 102}", pid=pid) for pid in (101, 102, 103))
)
"""TP0 has skipped the replay of a graph, whose collectives NCCL does not count, and gone on to the next collective."""
TABLE: list[tuple[str, HangEvidence, str, list[int]]] = [
    ("one rank sleeps", four(ATTENTION, ATTENTION, ATTENTION, SLEEPS), "HANG-RANK-BEHIND", [3]),
    ("one rank computes", last(SLEEPS, ("other (m.py:1)",)), "HANG-RANK-BEHIND", [3]),
    ("others wait for their GPU", four(SLEEPS, ON_GPU, ON_GPU, ON_GPU, gpus=(SPIN,)), "HANG-RANK-BEHIND", [0]),
    ("NCCL counts fewer of one", four((), ras=RAS), "HANG-RANK-BEHIND", [3]),
    ("it counts fewer, and all wait", four(ON_GPU, gpus=(SPIN,), ras=RAS), "HANG-DIVERGED", [3]),
    ("it counts more of one, and all wait", four(ON_GPU, gpus=(SPIN,), ras=AHEAD), "HANG-DIVERGED", [0]),
    ("two ranks wait for their GPU", on(rank(2, ON_GPU), rank(3, ON_GPU), ras=RAS), "HANG-DIVERGED", [2, 3]),
    ("one skipped a collective", four(ATTENTION, ATTENTION, ATTENTION, LOGITS), "HANG-DIVERGED", [3]),
    ("one is stopped", last(ATTENTION, states=("T", "T")), "HANG-HOST", [3]),
    ("one is in uninterruptible sleep", last(SLEEPS, states=("D", "D")), "HANG-HOST", [3]),
    ("one reads a file", last(SLEEPS, calls=("read /data/w0",) * 2), "HANG-HOST", [3]),
    ("a compiler runs", four(ATTENTION, ATTENTION, ATTENTION, SLEEPS, compilers=("nvcc",)), "HANG-COMPILE", []),
    ("FlashInfer tunes without P2P", four(TUNES, facts=facts(p2p_off=True)), "HANG-AUTOTUNE", [0, 1, 2, 3]),
    ("a graph between nodes, 2.28.9", four(REPLAY, facts=facts(nccl="2.28.9")), "HANG-GRAPH-NCCL", []),
    ("some wait for their GPU", four(REPLAY, ON_GPU, facts=facts(nccl="2.28.3")), "HANG-GRAPH-NCCL", []),
    ("RoCE, hours, 2.30.7", four(ON_GPU, facts=facts(nccl="2.30.7", serving_s=9000.0)), "HANG-IB-RESILIENCY", []),
    ("registered buffers, 2.31.2", four(ON_GPU, gpus=(SPIN,), facts=REGISTERS), "HANG-NETREG", []),
    ("a port is down", four(ON_GPU, ports=(replace(STILL, state="1: DOWN"),)), "HANG-FABRIC", []),
    ("a port repeats", four(ON_GPU, ports=(replace(STILL, rose={"local_ack_timeout_err": 3}),)), "HANG-FABRIC", []),
    ("data still moves", four(ON_GPU, ports=(replace(STILL, rose={"port_xmit_data": 1 << 22}),)), "HANG-FABRIC", []),
    ("ACS redirects", four(ATTENTION, facts=facts(redirected=True)), "HANG-P2P", []),
    ("nothing known", four(ATTENTION), "HANG-UNKNOWN", [0, 1, 2, 3]),
    ("ranks wait for requests", four(IDLE, REQUESTS), "HANG-UNKNOWN", [0, 1, 2, 3]),
    ("one moves on", on(rank(0, ATTENTION, LOGITS), rank(1, ATTENTION, SLEEPS)), "HANG-UNKNOWN", [0, 1]),
    ("nothing was read", four(()), "HANG-UNKNOWN", []),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "name", "ranks"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE])
def test_a_hang_has_one_class(evidence: HangEvidence, name: str, ranks: list[int]) -> None:
    found = classify(evidence)
    assert (found.name, [one.tp_rank for one in found.ranks]) == (name, ranks), found
    assert found.fix == KINDS[name].fix
    assert found.counts["ranks"] == 4 or len(evidence.looks) == 2


def without_version(look: HangLook) -> HangLook:
    return replace(look, facts=replace(look.facts, nccl=""))


def without_ports(look: HangLook) -> HangLook:
    return replace(look, ports=())


def without_stacks(look: HangLook) -> HangLook:
    return replace(look, ranks=tuple(replace(one, stacks=()) for one in look.ranks))


def without_processes(look: HangLook) -> HangLook:
    return replace(look, ranks=tuple(replace(one, states=(), calls=()) for one in look.ranks), compilers=())


def without_facts(look: HangLook) -> HangLook:
    return replace(look, facts=HangFacts())


NEEDS: dict[str, tuple[Callable[[HangLook], HangLook], ...]] = {
    "HANG-GRAPH-NCCL": (without_version, without_stacks, without_facts),
    "HANG-IB-RESILIENCY": (without_version, without_ports, without_stacks, without_facts),
    "HANG-NETREG": (without_version, without_ports, without_stacks, without_facts),
    "HANG-FABRIC": (without_ports, without_stacks),
    "HANG-P2P": (without_facts, without_stacks),
    "HANG-AUTOTUNE": (without_facts, without_stacks),
    "HANG-DIVERGED": (without_stacks,),
    "HANG-HOST": (without_processes,),
    "HANG-COMPILE": (without_processes,),
}


@pytest.mark.parametrize("case", TABLE, ids=[one[0] for one in TABLE])
def test_what_was_not_read_names_no_class(case: tuple[str, HangEvidence, str, list[int]]) -> None:
    _, evidence, name, _ = case
    for take_away in NEEDS.get(name, ()):
        looks = {node: take_away(look) for node, look in evidence.looks.items()}
        assert classify(replace(evidence, looks=looks)).name != name, take_away


def test_a_node_without_evidence_is_said_and_leaves_nothing_certain() -> None:
    whole = four(REPLAY, facts=facts(nccl="2.28.9"))
    found = classify(replace(whole, looks={"n0": whole.looks["n0"]}, silent=("n1",)))
    assert found.name == "HANG-UNKNOWN"
    assert "n1 gave no evidence" in found.evidence


@pytest.mark.parametrize("nccl", ["2.27.9", "2.30.4", "garbage", "2.28"])
def test_another_version_is_no_known_one(nccl: str) -> None:
    assert classify(four(REPLAY, facts=facts(nccl=nccl))).name == "HANG-UNKNOWN"


def test_minutes_of_service_are_no_hours() -> None:
    assert classify(four(ON_GPU, facts=facts(nccl="2.30.7", serving_s=600.0))).name == "HANG-UNKNOWN"


def test_only_what_goes_on_by_itself_moves() -> None:
    moving = [case for case, evidence, _, _ in TABLE if classify(evidence).moves]
    assert moving == ["a compiler runs", "data still moves"]


@pytest.mark.parametrize("case", ["a compiler runs", "data still moves"])
def test_what_moved_and_was_not_seen_again_moves_no_more(case: str) -> None:
    (evidence,) = [evidence for name, evidence, *_ in TABLE if name == case]
    assert classify(replace(evidence, age_s=FRESH_S - 1)).moves
    found = classify(replace(evidence, age_s=FRESH_S))
    assert (found.name, found.moves) == (classify(evidence).name, False)
    assert "that was 150 s ago, and was not seen again" in found.evidence


def test_without_a_class_the_sensors_and_counts_that_were_read_are_said() -> None:
    gpus = tuple(GpuLook(index=number, power_w=90.0 + number, clock_mhz=2520, utilization=100) for number in range(2))
    moving = RasLook(launched=(40, 47))
    evidence = classify(four(ATTENTION, gpus=gpus, ras=moving)).evidence
    assert "NCCL RAS: all ranks together have launched 47 operations, 7 more than at the first look" in evidence
    assert "ports: 2 of 2 read twice, 0.0 to 0.0 MB/s" in evidence
    assert "4 GPUs: used 100 %, power 90 to 91 W, clock 2520 MHz" in evidence
    frozen = classify(four(ATTENTION, ras=RasLook(launched=(40, 40)))).evidence
    assert "NCCL RAS: all ranks together have launched 40 operations, as many as at the first look" in frozen
    assert not any("GPUs" in sentence for sentence in classify(four(ATTENTION, gpus=(GpuLook(index=0),))).evidence)


@pytest.mark.parametrize(
    ("name", "within", "outside"),
    [
        ("HANG-GRAPH-NCCL", ["2.28.0", "2.28.9"], ["2.27.7", "2.29.0"]),
        ("HANG-IB-RESILIENCY", ["2.28.9", "2.29.3", "2.30.7"], ["2.28.8", "2.30.8"]),
        ("HANG-NETREG", ["2.31.2", "2.31.2+cuda12.8"], ["2.31.1", "2.31.3"]),
    ],
)
def test_a_rule_of_versions_has_both_of_its_ends(name: str, within: list[str], outside: list[str]) -> None:
    (rule,) = [one for one in SEEN_IN if one.id == name]
    assert [rule.has(version) for version in within + outside] == [True] * len(within) + [False] * len(outside)


def test_every_class_has_its_document() -> None:
    """`cause.hang` of `--json`: whichever class it is, the same keys."""
    for _, evidence, name, ranks in TABLE:
        told = cause_json(with_hang(Cause(node="n0", text="it stands", fix="restart"), classify(evidence), "gang0"))
        assert told is not None and told["id"] == name
        hang = told["hang"]
        assert set(hang) == {"class", "ranks", "counts", "evidence", "moves"}
        assert hang["class"] == name and [one["tp_rank"] for one in hang["ranks"]] == ranks
        assert all(set(one) == {"tp_rank", "node", "where", "collective"} for one in hang["ranks"])
        assert {"ranks", "read", "standing", "waiting"} <= set(hang["counts"])
        assert all(isinstance(sentence, str) for sentence in hang["evidence"])
    assert {name for _, _, name, _ in TABLE} == set(KINDS)


def test_stages_of_a_pipeline_stand_in_different_collectives_by_right() -> None:
    assert classify(four(ATTENTION, ATTENTION, ATTENTION, LOGITS, facts=facts(pp=2))).name == "HANG-UNKNOWN"


def test_a_rank_that_spins_at_one_line_of_a_gpu_program_may_wait_for_its_gpu() -> None:
    evidence = on(*(rank(n, ON_GPU) for n in range(3)), rank(3, SLEEPS, states=("R", "R")), gpus=(SPIN,))
    assert classify(evidence).name == "HANG-UNKNOWN"


def test_the_rank_behind_has_its_place_and_the_operation_that_it_missed() -> None:
    found = classify(four(ATTENTION, ATTENTION, ATTENTION, SLEEPS))
    places = [(one.node, one.where, one.collective) for one in found.ranks]
    assert places == [("n1", "slow_step (model.py:12)", "all_reduce")]
    assert found.counts == {"ranks": 4, "read": 4, "standing": 4, "waiting": 3}
    assert found.evidence[1] == "TP0, TP1, TP2 wait in all_reduce at attention (model.py:7)"


def test_what_could_not_be_read_is_among_the_evidence() -> None:
    found = classify(four((), unread={"Python stacks": "py-spy is not installed"}))
    assert "n0: not read: Python stacks (py-spy is not installed)" in found.evidence


def test_every_rule_has_a_kind_and_a_source() -> None:
    assert {one.id for one in SEEN_IN} <= set(KINDS)
    assert all("#" in one.source for one in SEEN_IN)
    assert not any("fixed" in one.words for one in SEEN_IN)
