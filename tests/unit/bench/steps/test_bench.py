"""What a benchmark's record says about its machines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.commands import unasked
from tests.support.faults import fault
from tests.support.healthy_cluster import cluster_of, healthy_nodes
from tests.support.reference_cluster import gang

from orchestrator.bench import text
from orchestrator.bench.steps import bench
from orchestrator.doctor.rules.support.cluster import gangs_of
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.view import GangView, NodeView
from orchestrator.jobs import run
from orchestrator.jobs.messages import JobLine
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import ExpectedSpeeds, Load
from orchestrator.model.snapshot import Snapshot
from orchestrator.protocol.errors import Disturbed, NodeError
from orchestrator.protocol.looks import Holdings
from orchestrator.protocol.report import RankReport
from orchestrator.records.documents import least_free


def test_findings_are_those_of_the_doctor_for_what_runs() -> None:
    nodes = healthy_nodes(2)
    fault("all RDMA ports without a link").breaks(nodes["node1"])
    cluster = cluster_of(nodes)
    one = gangs_of(cluster.specs.values())[0]
    ranks = tuple(RankReport(tp_rank=gpu, gpu=gpu) for gpu in range(8))
    view = GangView(
        name=one.name,
        state=GangState.READY,
        model="m",
        nodes=tuple(NodeView(name=name, node_rank=0, state=NodeState.READY, alive=True, ranks=ranks) for name in nodes),
    )
    found = {item["id"]: item for item in bench.findings_now(one, view, cluster.snapshots)}
    assert found["TRAFFIC-ON-TCP"]["node"] == "node1"
    assert found["TRAFFIC-ON-TCP"]["severity"] == "note", "stages of PP2 x TP8"


@pytest.mark.parametrize(
    ("expected", "dataset", "speeds", "runs"),
    [
        (100.0, "sharegpt.json", (99.0, 101.0, 1.0), 2),
        (100.0, "sharegpt.json", (70.0, 100.0, 99.0, 98.0, 99.0, 99.0), 5),
        (100.0, "sharegpt.json", (90.0, 96.0, 92.0, 93.0), 4),
        (100.0, text.NAME, (70.0, 100.0), 2),
        (None, "", (70.0, 100.0), 2),
    ],
)
def test_a_load_is_repeated_until_its_noise_leaves_one_verdict(
    expected: float | None, dataset: str, speeds: tuple[float, ...], runs: int, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    entry = ExpectedSpeeds(
        name="e", source="s", stack="k", layout="TP2", gpu="g", wiring="right", load=Load(), dataset="ShareGPT",
        figures=(("output_tok_s", expected or 0.0),),
    )  # fmt: skip
    monkeypatch.setattr(bench, "expectations", lambda _: (entry,) if expected else ())
    case = {"gang": "g", "model": "m", "stack": "k", "layout": "TP2", "gpu": "g", "dataset": dataset, "load": {},
            "stand_in": False}  # fmt: skip
    one: Any = lambda number: SimpleNamespace(figures={"output_tok_s": speeds[number - 1]})  # noqa: E731
    ran = bench.until_decided(one, bench._measure_of(case, Load()).decided)
    assert [one.figures["output_tok_s"] for one in ran] == list(speeds[:runs])


PROBED = "requests.exceptions.HTTPError: 400 Client Error: Bad Request for url: http://10.0.0.1:8000/flush_cache"


@pytest.mark.parametrize(
    ("ends", "starts", "said"),
    [
        ((PROBED, PROBED, ""), 3, "can't be read"),
        ((PROBED,) * 9, 3, "ended with status 1"),
        (("Unauthorized",) * 9, 1, "ended with status 1"),
        (("404 Client Error for url: http://h/flush_cache",) * 9, 1, "ended with status 1"),
    ],
)
def test_a_client_that_met_an_agents_probe_starts_again(
    ends: tuple[str, ...], starts: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[str]()

    def follow(_: Any, *, take: Any, **__: Any) -> None:
        begun.append(what := ends[len(begun)])
        take(JobLine(ended=int(bool(what)), what=what))

    monkeypatch.setattr(bench, "follow", follow)
    fleet: Any = SimpleNamespace(on_every=lambda work, only: (work(None), SimpleNamespace(all=dict))[1])
    request: Any = SimpleNamespace(stack="sglang-0.5.23", model_path="/m", layout=None, container=None)
    view: Any = SimpleNamespace(service_url="http://10.0.0.1:8000", model="m")
    with pytest.raises(NodeError, match=said):
        bench._Bench(fleet, gang(), view, request, bench.BenchOptions(load=Load(), timeout_s=9.0)).run(lambda *_: None)
    assert len(begun) == starts


def test_a_run_beside_which_others_were_answered_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 requests that the engine has answered meanwhile, 2 were ours."""
    answered = iter((100, 112))
    monkeypatch.setattr(run, "_finished", lambda *_: next(answered))
    monkeypatch.setattr(run, "_running", lambda *_: 0)
    look: Any = lambda *_: PerNode(values={"node0": Snapshot("node0", 1.0, {})}, failures={})  # noqa: E731
    view: Any = SimpleNamespace(service_url="http://10.0.0.1:8000", model="m", serves=True)
    made: Any = SimpleNamespace(
        engine=SimpleNamespace(stack="k"), record=lambda **_: {}, run=lambda _: SimpleNamespace(figures={}, text="")
    )
    for name, value in (
        ("serving_view", lambda *_, **__: view), ("_Bench", lambda *_: made),
        ("tuned_now", lambda *_: {}), ("_measure_of", lambda *_: None), ("findings_now", lambda *_: []),
        ("staged_plan", lambda *_: SimpleNamespace(requests={"node0": None})), ("look", look),
        ("gpu_of", lambda _: "g"),
        ("_warm_up", lambda *_: (SimpleNamespace(result=SimpleNamespace(stand_in=False)), {})),
    ):  # fmt: skip
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(Operation, "as_they_run", lambda _, gangs: tuple(gangs))
    order = bench.BenchOptions(load=Load(prompts=2), timeout_s=9.0, enough=lambda _: False)
    with pytest.raises(Disturbed, match="requests of others ran during the measurement: the engine answered 12"):
        bench.measured(unasked(Inventory(path="hosts.yml", gangs=(gang(1),))), gang(1), order, lambda *_: None)


def test_tuned_files_are_named_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"node0": Holdings(folders={"/s/moe": {"b.json": "{}", "a.json": "{}"}, "/s/none": {}})}
    monkeypatch.setattr(bench, "ask_holdings", lambda *_: SimpleNamespace(values=held))
    fleet: Any = None
    assert bench.tuned_now(fleet, gang(), "sglang-0.5.23", "NVIDIA L40S") == {
        "node0": ["/s/moe/a.json", "/s/moe/b.json"]
    }
    assert bench.tuned_now(fleet, gang(), "no-such-stack", "NVIDIA L40S") == {}


def measured_gang(free: int | None, run: str = "r1") -> GangView:
    """What serves, and the least that its one node has seen free."""
    ranks = (RankReport(tp_rank=0, gpu=0),)
    node = NodeView(name="node0", node_rank=0, state=NodeState.READY, alive=True, ranks=ranks, least_free_bytes=free)
    return GangView(name="gang0", state=GangState.READY, service_healthy=True, plan_id="p1", run_id=run, nodes=(node,))


def test_the_least_memory_that_was_free_is_kept_for_the_next_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    unused: Any = None
    measured = bench._Bench(unused, gang(), measured_gang(None), unused, bench.BenchOptions(load=Load(), timeout_s=9.0))
    for now, kept in ((measured_gang(None), None), (measured_gang(6 << 30), 6 << 30)):
        monkeypatch.setattr(bench, "see", lambda *_, seen=now: (seen,))
        assert measured.least_free_after() == least_free("gang0", "p1") == kept
    monkeypatch.setattr(bench, "see", lambda *_: (measured_gang(1, "r2"),))
    with pytest.raises(NodeError, match="stopped or restarted during the measurement"):
        measured.least_free_after()
    assert least_free("gang0", "p1") == 6 << 30
