"""One scrape as metrics: which are present, which are left out; all of them are in the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from orchestrator.engines.serving import Worker
from orchestrator.gang.history import PastRun
from orchestrator.gang.overview import RouterGlance
from orchestrator.gang.view import view
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.monitoring.catalogue import CATALOGUE
from orchestrator.monitoring.metrics import Past, Scene, _readable, last_failure, metrics, phases, restarts
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.protocol.gauges import FiguresAnswer, GaugesAnswer, GpuGauges, PortGauges, XidCount
from orchestrator.protocol.report import AgentState, Cause, RankReport, RankState, Report
from orchestrator.protocol.verbs import LockHolder

NOW = 1000.0
CAUSE = Cause(node="node1", tp_rank=3, signature="OOM-KILLED", text="killed")
LOST = Unreachable("no route", where="node1", fix="look at it")
GANG = GangSpec(
    name="g",
    nodes=tuple(
        NodeSpec(name=f"node{rank}", gang="g", node_rank=rank, reach=Reach(host=f"10.0.0.{rank}")) for rank in (0, 1)
    ),
)
GAUGES = GaugesAnswer(
    now=NOW,
    gpus=(
        GpuGauges(index=0, uuid="GPU-1", power_mw=287_500, clocks_event_reasons=0x44, ecc_corrected=2),
        GpuGauges(index=1, error="GPU is lost"),
    ),
    ports=(
        PortGauges(
            device="mlx5_0",
            port=1,
            state="4: ACTIVE",
            rate="100 Gb/sec (4X EDR)",
            counters={"port_rcv_data": 1000, "out_of_sequence": 7, "np_cnp_sent": 5},
        ),
    ),
)


def report(rank: int, state: str = "ready", **more_keys: Any) -> Report:
    served = {"service_url": "http://a:1", "service_healthy": True, "service_checked_at": NOW} if rank == 0 else {}
    ranks = (RankReport(tp_rank=rank, gpu=0, pid=7, state=RankState.ALIVE, gpu_memory_bytes=1 << 30),)
    words: dict[str, Any] = {
        "run_id": "r2", "gang": "g", "node": f"node{rank}", "node_rank": rank, "state": AgentState(state),
        "started_at": NOW - 60, "updated_at": NOW, "now": NOW, "ranks": ranks, "alive": state == "ready",
        "links": {"node1": "heard"} if rank == 0 else {}, "service_latency_s": 0.25, **served,
    }  # fmt: skip
    return Report(**{**words, **more_keys})


def scene(*answers: Report | DeployError, **more_parts: Any) -> Scene:
    nodes: dict[str, FiguresAnswer | DeployError] = {}
    for rank, answer in enumerate(answers):
        nodes[f"node{rank}"] = (
            answer
            if isinstance(answer, DeployError)
            else FiguresAnswer(now=NOW, reports=(answer.as_json(),), gauges=GAUGES if rank == 0 else None)
        )
    seen = view("g", {f"node{rank}": answer for rank, answer in enumerate(answers)})
    return Scene(gangs=(GANG,), views=(seen,), nodes={**nodes, **more_parts.pop("nodes", {})}, **more_parts)


def value(found: Scene, name: str, **labels: object) -> float | None:
    """The value of the one sample with these labels; None if there is none."""
    wanted = {key: str(word) for key, word in labels.items()}
    every = [one for family in metrics(found) for one in family.samples if one.name == name]
    samples = [float(one.value) for one in every if wanted.items() <= one.labels.items()]
    assert len(samples) < 2, samples
    return samples[0] if samples else None


def test_a_gang_that_serves() -> None:
    found = scene(report(0), report(1))
    assert value(found, "l40s_gang_state", gang="g", state="ready") == 1
    assert value(found, "l40s_gang_state", gang="g", state="failed") == 0
    assert value(found, "l40s_gang_serving", gang="g") == 1 and value(found, "l40s_gang_failed") is None
    assert value(found, "l40s_rank_alive", node="node1", tp_rank=1) == 1
    assert value(found, "l40s_rank_gpu_memory_bytes", node="node0", gpu=0) == 1 << 30
    assert value(found, "l40s_gang_canary_duration_seconds") == 0.25
    assert value(found, "l40s_node_peer_heard", node="node0", peer="node1") == 1
    silent = scene(report(0, links={"node1": "silent"}), report(1))
    assert value(silent, "l40s_node_peer_heard", node="node0", peer="node1") == 0
    assert value(silent, "l40s_gang_degraded", gang="g", reason="silent") == 1


def test_a_killed_rank_is_named_with_its_node_and_cause() -> None:
    dead = (RankReport(tp_rank=3, gpu=1, pid=7, state=RankState.DEAD),)
    found = scene(report(0, "failed", cause=CAUSE), report(1, "failed", cause=CAUSE, ranks=dead))
    assert value(found, "l40s_gang_failed", node="node1", tp_rank=3, cause="OOM-KILLED") == 1
    assert value(found, "l40s_rank_alive", node="node1", tp_rank=3) == 0


def test_a_node_that_does_not_answer_is_a_value_and_its_hardware_is_left_out() -> None:
    found = scene(LOST, report(1))
    assert value(found, "l40s_node_up", node="node0") == 0 and value(found, "l40s_node_up", node="node1") == 1
    assert value(found, "l40s_node_state", node="node0", state="unreachable") == 1
    assert value(found, "l40s_gpu_power_watts") is None


def test_units_are_base_units() -> None:
    found = scene(report(0), report(1))
    assert value(found, "l40s_gpu_power_watts", gpu=0) == pytest.approx(287.5)
    assert value(found, "l40s_rail_received_bytes_total") == 4000
    assert value(found, "l40s_rail_speed_bytes_per_second") == 12.5e9
    assert value(found, "l40s_gpu_clock_limited", reason="hw_thermal") == 1
    assert value(found, "l40s_gpu_clock_limited", reason="hw_slowdown") == 0
    assert value(found, "l40s_gpu_up", gpu=1) == 0 and value(found, "l40s_gpu_ecc_errors_total", type="corrected") == 2


def test_locks_guards_and_routers() -> None:
    held = LockHolder(token="t", who="ops", host="desk", pid=1, command="l40s-deploy restart g", age_s=3.0)
    answer = FiguresAnswer(now=NOW, reports=(report(0).as_json(),), locks={"g": held, "guard.g": held})
    router = RouterGlance(url="u", node="head", workers=(Worker("1", "http://a:1", healthy=True, load=4),))
    found = scene(report(0), report(1), nodes={"node0": answer}, router=router)
    assert value(found, "l40s_lock_held", holder="ops@desk (pid 1)", command="l40s-deploy restart g") == 1
    assert value(found, "l40s_lock_age_seconds", gang="g") == 3 and value(found, "l40s_guard_up", gang="g") == 1
    assert value(found, "l40s_router_worker_healthy", gang="g") == 1 and value(found, "l40s_router_up") == 1
    assert value(found, "l40s_router_max_requests") is None and value(found, "l40s_gang_max_queued") is None
    limited = scene(
        replace(report(0), request_limit=81), report(1), router=RouterGlance(url="u", node="head", request_limit=160)
    )
    assert value(limited, "l40s_router_max_requests") == 160 and value(limited, "l40s_gang_max_queued", gang="g") == 81
    unlisted = scene(report(0), report(1), router=RouterGlance(url="u", node="head"))
    assert value(unlisted, "l40s_router_up") == 0 and value(unlisted, "l40s_gang_degraded") is None


def test_whether_notifications_arrive() -> None:
    found = scene(report(0), report(1), receivers={"slack at a": False, "webhook at b": True})
    assert [value(found, "l40s_notifier_up", receiver=one) for one in ("slack at a", "webhook at b")] == [0, 1]


def test_what_was_measured_and_found() -> None:
    bench = {"gang": "g", "model": "m", "stack": "s", "at": 5.0, "load": {"prompts": 8, "input": 1, "output": 2,
             "concurrency": 4},
             "serving": {"output_tok_s": 90.0, "ttft_median_ms": 250.0, "accept_length": 1.8}}  # fmt: skip
    link = {"from": "node0", "to": "node1", "kind": "nodes", "measured_gbps": 80.0, "tries_gbps": [80.0, 72.0]}
    test = {"kind": "all", "where": "gang", "bytes": 14336, "measured_us": 90.0}
    nettest = {"gang": "g", "at": 6.0, "verdict": "slow", "tests": [test], "links": [link],
               "verification": {"verdict": "corrupt"}}  # fmt: skip
    found = scene(
        report(0),
        report(1),
        benches=(bench, {**bench, "gang": "another"}),
        nettests=(nettest,),
        looked=(7.0, [{"id": "GPU-XID", "severity": "slow", "node": "node0"}] * 2),
    )
    assert value(found, "l40s_bench_output_tokens_per_second", gang="g") == 90
    assert value(found, "l40s_bench_first_token_seconds") == 0.25
    assert value(found, "l40s_bench_accept_length", gang="g") == 1.8
    assert value(found, "l40s_nettest_link_bytes_per_second") == 9e9 and value(found, "l40s_nettest_slow") == 1
    assert value(found, "l40s_nettest_corrupt") == 1
    for verdict in ("ok", "not judged"):  # kept by an older release if nothing was expected
        fine = scene(report(0), report(1), nettests=({**nettest, "verdict": verdict},))
        assert value(fine, "l40s_nettest_slow") == 0
    assert value(found, "l40s_nettest_all_reduce_seconds") == pytest.approx(90e-6)
    assert value(found, "l40s_finding", id="GPU-XID", node="node0") == 2
    assert value(found, "l40s_doctor_last_look_timestamp_seconds") == 7


def test_every_metric_has_its_name_in_the_catalogue_and_the_client_library_takes_all() -> None:
    answer = FiguresAnswer(now=NOW, reports=(report(0).as_json(),), gauges=GAUGES,
                           xids=(XidCount(pci_bus_id="0000:3b:00", xid=79, count=1),))  # fmt: skip
    past = Past(restarts={"OOM-KILLED": 2}, failure=(CAUSE, 9.0), phases={"weights": 5.0})
    families = metrics(scene(report(0), report(1), nodes={"node0": answer}, past={"g": past}))
    assert {one.name for family in families for one in family.samples} <= CATALOGUE.keys()

    class Once(Collector):
        def collect(self) -> Iterable[Metric]:
            return families

    text = generate_latest(Once()).decode()
    assert 'l40s_gang_restarts_total{cause="OOM-KILLED",gang="g"} 2.0' in text
    assert 'l40s_gpu_xid_errors_total{gang="g",node="node0",pci_bus_id="0000:3b:00",xid="79"} 1.0' in text
    assert 'l40s_gang_last_failure_timestamp_seconds{cause="OOM-KILLED",gang="g",node="node1",tp_rank="3"} 9.0' in text


def run(run_id: str, cause: Cause | None = None, ended: float = 0.0) -> PastRun:
    return PastRun(gang="g", run_id=run_id, plan_id="p", model="m", started=1.0, ended=ended, by="", command="",
                   end="failed" if cause else "stopped", cause=cause)  # fmt: skip


def test_restarts_are_counted_by_why_the_run_before_ended() -> None:
    runs = [run("r3"), run("r2", CAUSE, ended=900.0), run("r1")]
    assert restarts(runs) == {"OOM-KILLED": 1, "stopped": 1}
    assert restarts([run("r1")]) == {}


def test_a_counter_does_not_go_back_when_nodes_forget_old_runs() -> None:
    assert restarts([run("r3"), run("r2", CAUSE)], {"r1", "r2"}) == {"OOM-KILLED": 1}
    assert restarts([run("r3"), run("r2", CAUSE)], {"r1", "r2", "r3"}) == {}


def test_a_failure_s_time_is_by_our_clock() -> None:
    runs = [run("r3"), run("r2", CAUSE, ended=900.0)]
    failure = last_failure(runs, now=5000.0, clock=930.0)
    assert failure == (CAUSE, 4970.0)
    assert last_failure([run("r1")], 1.0, 1.0) is None


def test_phases_last_until_the_next_one_begins() -> None:
    assert phases({"weights": 2.0, "rendezvous": 0.5, "ready": 9.0}) == {"rendezvous": 1.5, "weights": 7.0}


def test_a_label_drives_no_terminal() -> None:
    assert _readable("node\x1b[2Jx") == "node?[2Jx"
    assert _readable("\u8282\u70b9 1") == "\u8282\u70b9 1"
