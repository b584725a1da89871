"""Which path to a node is broken, and a gang whose traffic has left the planned one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from orchestrator.gang.guarding import GuardAction, GuardMemory, Policy, decide
from orchestrator.gang.overview import degraded_reason, status_json
from orchestrator.gang.paths import Contact, contact, contact_sentence
from orchestrator.gang.steps.up import refusal
from orchestrator.gang.view import GangView, view
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.report import AgentState, RailChange, RankReport, Report, TransportLines
from orchestrator.protocol.severity import Severity
from orchestrator.topology.speed import HANDED_OVER, PRICED_ON

REFUSED = Unreachable("connection refused", where="b", fix="look")


def fellow(name: str, alive: bool = True, **links: str) -> tuple[str, Report]:
    return name, Report(run_id="r", gang="g", node=name, node_rank=0, state=AgentState.READY, alive=alive, links=links)


TABLE: list[tuple[str, DeployError | None, bool, Mapping[str, Report], str]] = [
    ("all is well", None, False, dict([fellow("a", b="heard")]), ""),
    ("nobody else is there", None, False, {}, ""),
    ("only SSH has failed", REFUSED, False, dict([fellow("a", b="heard", c="heard")]), "ssh"),
    ("the node is dead", REFUSED, False, dict([fellow("a", b="silent")]), "node"),
    ("it missed two words", REFUSED, False, dict([fellow("a", b="quiet")]), "node"),
    ("it is quiet and answers", None, False, dict([fellow("a", b="quiet")]), ""),
    ("its connection broke", REFUSED, False, dict([fellow("a", b="lost")]), "node"),
    ("the leader is dead", REFUSED, False, dict([fellow("c", b="silent"), fellow("d", b="lost")]), "node"),
    ("one of them hears it", REFUSED, False, dict([fellow("c", b="silent"), fellow("d", b="heard")]), "ssh"),
    ("it had ended before", REFUSED, False, dict([fellow("a", b="ended")]), "unknown"),
    ("no run was there", REFUSED, False, {}, "unknown"),
    ("the fellow's agent is dead", REFUSED, False, dict([fellow("a", alive=False, b="heard")]), "unknown"),
    ("the link is cut", None, False, dict([fellow("a", b="silent")]), "link"),
    ("the agent is stuck", None, True, dict([fellow("a", b="silent")]), "agent"),
]


@pytest.mark.parametrize(("error", "stuck", "current", "word"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_which_way_is_broken(error: DeployError | None, stuck: bool, current: Mapping[str, Report], word: str) -> None:
    found = contact("b", error, current, stuck=stuck)
    assert found.value == word
    said = contact_sentence("b", found, error, current)
    assert bool(said) == bool(word)
    if error is not None:
        assert "connection refused" in said


def test_the_sentences_say_what_is_broken_and_who_knows() -> None:
    current = dict([fellow("a", b="heard")])
    said = contact_sentence("b", Contact.SSH, REFUSED, current)
    assert said == (
        "b can't be reached by SSH (connection refused), but a still hears its agent: only SSH has failed, "
        "the gang is intact"
    )
    heard = dict([fellow("a", b="heard"), fellow("c", b="heard")])
    assert "but a, c still hear its agent" in contact_sentence("b", Contact.SSH, REFUSED, heard)
    silent = dict([fellow("a", b="silent"), fellow("c", b="silent")])
    assert "and a, c do not hear its agent either" in contact_sentence("b", Contact.NODE, REFUSED, silent)
    assert "but a, c do not hear its agent" in contact_sentence("b", Contact.LINK, None, silent)


def report(rank: int, *rails: RailChange, moved: int = 0) -> Report:
    return Report(
        run_id="r", gang="g", node=f"node{rank}", node_rank=rank, nnodes=2, state=AgentState.READY, now=10.0,
        updated_at=10.0, service_url="http://x" if rank == 0 else "", service_healthy=True if rank == 0 else None,
        service_checked_at=9.0, rails=rails, moved=moved,
    )  # fmt: skip


def test_a_gang_that_lost_a_rail_serves_on_and_says_so() -> None:
    gone = RailChange(port="mlx5_1:1", at=5.0)
    seen = view("g", {"node0": report(0, moved=4), "node1": report(1, gone, moved=4)})
    assert seen.state is GangState.READY
    assert degraded_reason(seen) == "rails"
    (one,) = status_json([seen])["gangs"][0]["rails"]
    assert (one["node"], one["port"], one["up"]) == ("node1", "mlx5_1:1", False)
    assert "tokens/s" in one["text"]
    assert any("node0" in words and "another node's port" in words for words in seen.remarks)
    decision, _ = decide(seen, GuardMemory(), 0.0, Policy())
    assert decision.do is GuardAction.NOTHING
    assert "mlx5_1:1 is down" in decision.why


def test_a_guard_proposes_a_restart_once_the_port_is_back() -> None:
    back = RailChange(port="mlx5_1:1", up=True, at=5.0)
    decision, _ = decide(view("g", {"node0": report(0), "node1": report(1, back)}), GuardMemory(), 0.0, Policy())
    assert decision.do is GuardAction.NOTHING
    assert "run `l40s-deploy restart g` when it suits you" in decision.why


@pytest.mark.parametrize("notice_s", [30.0, 0.0])
def test_what_is_known_of_port_failover_is_said_once_while_it_is_on(notice_s: float) -> None:
    lines = TransportLines(network=NodeNetwork(transport=Transport.RDMA, notice_s=notice_s))
    seen = view("gang0", {f"node{rank}": replace(report(rank), transport=lines) for rank in range(2)})
    told = [remark for remark in seen.remarks if "NVIDIA/nccl#2334" in remark]
    assert len(told) == (1 if notice_s else 0)


def test_nothing_is_said_of_a_gang_whose_rails_are_well() -> None:
    seen = view("g", {"node0": report(0), "node1": report(1)})
    assert (degraded_reason(seen), seen.remarks) == ("", ())
    assert decide(seen, GuardMemory(), 0.0, Policy())[0].why == ""


PLANNED = NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1", logged=True)
ON_TCP = ("Using network Socket",)


def gang(first_ranks: list[int], *lines: str, nodes: int = 4, model: str = "DeepSeek-R1-Channel-INT8") -> GangView:
    """A ready gang of four nodes with eight ranks each, of which `nodes` answer; every node says the same lines."""
    reports = {
        f"node{number}": Report(
            run_id="r", gang="g", node=f"node{number}", node_rank=number, nnodes=4, state=AgentState.READY, now=10.0,
            updated_at=10.0, service_url="http://x" if number == 0 else "", service_checked_at=9.0, model=model,
            service_healthy=True if number == 0 else None,
            ranks=tuple(RankReport(tp_rank=first + gpu, gpu=gpu) for gpu in range(8)),
            transport=TransportLines(network=PLANNED, lines=lines),
        )
        for number, first in enumerate(first_ranks[:nodes])
    }  # fmt: skip
    return view("g", reports)


ONE_GROUP, STAGES = [0, 8, 16, 24], [0, 0, 0, 0]


def test_tcp_between_pipeline_stages_is_a_note_that_strict_lets_pass() -> None:
    seen = gang(STAGES, *ON_TCP)
    assert {(one.id, one.severity) for one in seen.transport} == {("TRANSPORT-NOT-RDMA", Severity.NOTE)}
    assert {one.effect for one in seen.transport} == {HANDED_OVER}
    assert refusal(seen) is None and degraded_reason(seen) == ""


def test_tcp_below_tensor_parallelism_is_slow_and_refused() -> None:
    seen = gang(ONE_GROUP, *ON_TCP)
    assert {one.severity for one in seen.transport} == {Severity.SLOW}
    assert all(one.effect.endswith(f"{PRICED_ON})") for one in seen.transport), "measured on just this"
    refused = refusal(seen)
    assert refused is not None and "TRANSPORT-NOT-RDMA" in refused.what and degraded_reason(seen) == "rails"


def test_strict_does_not_stop_a_gang_of_which_nothing_is_proved() -> None:
    seen = gang(ONE_GROUP)
    assert {one.id for one in seen.transport} == {"TRANSPORT-UNPROVEN"}
    assert refusal(seen) is None


def test_half_of_a_gang_does_not_tell_its_layout() -> None:
    """Of PP2 x TP16, the first and the third node have the same ranks as two stages of TP8."""
    seen = gang([0, 0], *ON_TCP, nodes=2)
    assert {one.severity for one in seen.transport} == {Severity.SLOW}


@pytest.mark.parametrize(
    ("first", "model", "words"),
    [
        (STAGES, "DeepSeek-R1-Channel-INT8", "not measured at PP4 x TP8"),
        (ONE_GROUP, "Kimi-K2", "not measured with Kimi-K2"),
        (STAGES, "Kimi-K2", "not measured at PP4 x TP8, nor with Kimi-K2"),
    ],
)
def test_a_price_says_what_it_was_not_measured_on(first: list[int], model: str, words: str) -> None:
    seen = gang(first, "NET/IB : Using [0]mlx5_9:1/RoCE [RO]", "Using network IB", model=model)
    assert {one.id for one in seen.transport} == {"TRANSPORT-DEVICE-UNUSED"}
    assert all(PRICED_ON in one.effect and one.effect.endswith(words) for one in seen.transport)
