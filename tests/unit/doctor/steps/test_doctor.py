"""Accepting, refusing, planning with findings, NCCL's expectations: everything around the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.faults import fault
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_nodes

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.doctor import Examination, check_accept, diagnose, expected, refuse
from orchestrator.doctor.steps.plan_findings import examined
from orchestrator.doctor.steps.recordings import given
from orchestrator.gang.steps.examination import caches_of, layouts_of
from orchestrator.gang.view import GangView, NodeView
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.model.topology import Topology
from orchestrator.monitoring.steps import doctor_watch as watching
from orchestrator.planning import page_cache
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.steps.plan import PlanResult
from orchestrator.protocol.errors import FindingsError, InputError
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.report import RankReport
from orchestrator.protocol.severity import Severity
from orchestrator.topology.speed import HANDED_OVER, PRICED_ON, tcp_severity


def small_shm(node: HealthyNode) -> None:
    fault("small /dev/shm").breaks(node)


def findings_of(cluster: Cluster, *accept: str) -> tuple[set[str], set[str]]:
    """Ids of the remaining findings, and of the accepted ones."""
    examination = diagnose(cluster, {}, accept=accept)
    return {finding.id for finding in examination.findings}, {finding.id for finding in examination.accepted}


@pytest.mark.parametrize(
    ("accept", "left"),
    [((), {"LIMITS"}), (("LIMITS",), set()), (("LIMITS@node2",), set()), (("LIMITS@node1",), {"LIMITS"})],
)
def test_whatever_the_operator_names_is_set_aside_even_a_stop(accept: tuple[str, ...], left: set[str]) -> None:
    found, accepted = findings_of(cluster_with("node2", small_shm), *accept)
    assert found == left
    assert accepted == {"LIMITS"} - left


def test_the_inventory_accepts_for_its_own_node() -> None:
    def accepted_here(node: HealthyNode) -> None:
        small_shm(node)
        node.spec["accept"] = ("LIMITS",)

    assert findings_of(cluster_with("node2", accepted_here)) == (set(), {"LIMITS"})


def test_a_finding_of_the_whole_cluster_is_accepted_by_all_nodes_or_by_name() -> None:
    def cluster(*accepting: str) -> Cluster:
        nodes = healthy_nodes(2)
        nodes["node1"].nvml["driver"] = "550.54.15"
        for name in accepting:
            nodes[name].spec["accept"] = ("NODE-DIFFERS",)
        return cluster_of(nodes)

    assert findings_of(cluster("node0")) == ({"NODE-DIFFERS"}, set())
    assert findings_of(cluster("node0", "node1")) == (set(), {"NODE-DIFFERS"})
    assert findings_of(cluster(), "NODE-DIFFERS") == (set(), {"NODE-DIFFERS"})


@pytest.mark.parametrize(("word", "wrong"), [("LIMIT", "LIMIT"), ("LIMITS@node9", "node9"), ("", "")])
def test_a_typing_error_does_not_pass_for_an_acceptance(word: str, wrong: str) -> None:
    with pytest.raises(InputError) as refused:
        check_accept([word], ["node0"])
    assert repr(wrong) in refused.value.what
    check_accept(["LIMITS", "LIMITS@node0", "TRANSPORT-TCP"], ["node0"], more_ids=["TRANSPORT-TCP"])


def finding(severity: Severity, node: str = "node1") -> Finding:
    return Finding(id="SOME-ID", severity=severity, node=node, title="it is so", effect="it costs", fix="correct it")


PROFILE, STACK = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
PLAN = Plan(plan_id="0000", facts_digest="", facts=(), gangs=())


def transport(name: str) -> Finding:
    """A finding about the gang as planning makes it."""
    return Finding(id=name, severity=Severity.SLOW, node="", title="gang gang0: over TCP", effect="it is slow")


def test_stop_refuses_and_slow_only_where_strict() -> None:
    refuse([finding(Severity.SLOW), finding(Severity.NOTE), finding(Severity.UNKNOWN)])
    with pytest.raises(FindingsError) as refused:
        refuse([finding(Severity.STOP), finding(Severity.STOP, "node2")])
    assert refused.value.exit_code == 3
    assert refused.value.where == "node node1"
    assert "SOME-ID: it is so. it costs (and 1 more" in refused.value.what
    assert "--accept SOME-ID@node1" in refused.value.fix
    with pytest.raises(FindingsError, match="the cluster"):
        refuse([finding(Severity.SLOW, "")], strict=True)


def planned_on(cluster: Cluster, *found: Finding, **more: Any) -> tuple[PlanResult, list[GangSpec]]:
    plan = replace(PLAN, findings=found, gangs=more.pop("gangs", ()))
    facts = {"topologies": cluster.topologies, "snapshots": cluster.snapshots}
    planned = PlanResult(**{"plan": plan, "profile": PROFILE, "stack": STACK, **facts, **more})
    return planned, [GangSpec(name="gang0", nodes=tuple(cluster.specs.values()))]


def test_a_plans_own_facts_are_enough() -> None:
    planned = planned_on(cluster_with("node2", small_shm), finding(Severity.SLOW, ""), transport("TRANSPORT-TCP"))
    made = examined(*planned)
    assert [(one.id, one.node) for one in made.findings] == [
        ("LIMITS", "node2"),
        ("TRANSPORT-TCP", ""),
        ("SOME-ID", ""),
    ]
    accepted = examined(*planned, accept=("LIMITS", "TRANSPORT-TCP"))
    assert [one.id for one in accepted.findings] == ["SOME-ID"]
    assert [one.id for one in accepted.accepted] == ["LIMITS", "TRANSPORT-TCP"]
    with pytest.raises(InputError, match="RDMA-PORTS-UNEVEN"):
        examined(*planned, accept=("RDMA-PORTS-UNEVEN",))


def test_rules_judge_by_the_profile_that_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the operator's own is no profile that could be loaded by its name."""
    judged: list[Cluster] = []

    def judge(one: Cluster) -> tuple[Finding, ...]:
        judged.append(one)
        return ()

    monkeypatch.setattr("orchestrator.doctor.steps.plan_findings.run_rules", judge)
    own = replace(PROFILE, name="mine")
    gang = SimpleNamespace(name="gang0", layout=Layout(tensor_parallel=8, nnodes=1, gpus_per_node=8), model="mine")
    examined(*planned_on(cluster_with("node2", small_shm), gangs=(gang,), profile=own))
    assert judged[0].served["gang0"][0] is own


def test_what_a_rule_tells_better_is_told_once() -> None:
    cluster = cluster_with("node2", fault("all RDMA ports without a link").breaks)
    made = examined(*planned_on(cluster, transport("TRANSPORT-TCP"), transport("RDMA-PORTS-UNEVEN")))
    assert [one.id for one in made.findings] == ["TRAFFIC-ON-TCP", "RDMA-PORT-DOWN"]


def test_what_nccl_should_log() -> None:
    def counts(cluster: Cluster) -> list[tuple[str, int, int]]:
        return [(one.version, one.nodes, one.local_ranks) for one in expected(cluster)]

    assert counts(cluster_of(healthy_nodes())) == [("2.21.5", 8, 4), ("2.30.7", 8, 4)]
    one_bad = cluster_with("node2", fault("card in a root-port slot").breaks)
    assert counts(one_bad) == [("2.21.5", 7, 8), ("2.30.7", 7, 8)]
    one_port = cluster_with("node2", fault("port without a link").breaks)
    assert counts(one_port) == [("2.21.5", 8, 4), ("2.30.7", 7, 8)]  # 12.5 GB/s is above 10, and below 22
    without_rdma = cluster_with("node2", fault("all RDMA ports without a link").breaks)
    assert counts(without_rdma) == [("2.21.5", 4, 8), ("2.30.7", 4, 8)]
    assert expected(cluster_of(healthy_nodes(1))) == ()


@pytest.mark.parametrize("hidden", [False, True])
def test_only_gpus_that_a_node_may_use_are_counted(hidden: bool) -> None:
    """Eight GPUs on each node's bus, of which l40s_gpus allows one; NVML shows one or all."""
    nodes = healthy_nodes(2)
    for node in nodes.values():
        node.spec["gpus"] = 1
        if hidden:
            del node.gpus[1:]
    cluster = cluster_of(nodes)
    assert {(one.nodes, one.local_ranks) for one in expected(cluster)} == {(2, 1)}
    notes = [finding for finding in diagnose(cluster, {}).findings if finding.id == "GPU-NOT-USED"]
    assert [note.severity for note in notes] == [Severity.NOTE] * 2
    assert [note.title for note in notes] == ["7 of 8 GPUs are not used"] * 2
    assert any(("NVML does not show it" in line) == hidden for line in notes[0].evidence[3:])


@pytest.mark.parametrize(
    ("names", "missing"), [((), False), (("0", "3"), False), (("7", "0"), True), (("0", "9"), True)]
)
def test_a_lost_gpu_is_missing_where_l40s_gpus_means_it(names: tuple[str, ...], missing: bool) -> None:
    node = healthy_nodes(1)["node0"]
    node.spec.update(gpus=2, gpu_names=names)
    node.gpus[7] = {"index": 7, "errors": {"nvmlDeviceGetHandleByIndex": "GPU is lost"}}
    found = {one.id: one for one in diagnose(cluster_of({"node0": node}), {}).findings}
    assert ("GPU-MISSING" in found) is missing
    if missing:
        assert f"inventory: l40s_gpus = {', '.join(names)}" in found["GPU-MISSING"].evidence


def price_at(cluster: Cluster) -> str:
    return next(finding.effect for finding in diagnose(cluster, {}).findings if finding.node == "node2")


def test_a_price_says_where_it_does_not_apply() -> None:
    nodes = healthy_nodes(4)
    fault("card in a root-port slot").breaks(nodes["node2"])
    cluster = cluster_of(nodes)
    assert PRICED_ON in price_at(cluster) and "NVLink" not in price_at(cluster)
    stages = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)
    gang = cluster.specs["node2"].gang
    other = replace(cluster, layouts={gang: stages}, models={gang: "Kimi-K2"})
    assert price_at(other).endswith("not measured at PP4 x TP8, nor with Kimi-K2")
    links = [{"active": 1, "p2p": 1, "remote": "FFFFFFF:FF:FF.0"}] * 18
    for change, words in (
        ({"name": "NVIDIA H100 PCIe"}, "not measured on H100"),
        ({"nvlinks": links}, "these GPUs have NVLink, for which the cost does not apply"),
    ):
        for node in nodes.values():
            for gpu in node.gpus:
                gpu.update(change)
        assert price_at(cluster_of(nodes)).endswith(words)


def test_a_node_without_ports_costs_pipeline_stages_next_to_nothing() -> None:
    nodes = healthy_nodes(2)
    fault("all RDMA ports without a link").breaks(nodes["node1"])
    cluster = cluster_of(nodes)
    gang = cluster.specs["node1"].gang
    stages = Layout(tensor_parallel=8, pipeline_parallel=2, nnodes=2, gpus_per_node=8)
    found = [
        {one.id: one for one in diagnose(each, {}).findings if one.node == "node1"}
        for each in (cluster, replace(cluster, layouts={gang: stages}))
    ]
    for id_ in ("TRAFFIC-ON-TCP", "RDMA-PORT-DOWN"):
        assert [each[id_].severity for each in found] == [Severity.SLOW, Severity.NOTE]
        assert HANDED_OVER in found[1][id_].effect


def test_the_stack_decides_the_version() -> None:
    nodes = healthy_nodes(2)
    for node in nodes.values():
        node.spec["stack"] = "sglang-0.4.4-l40s"
    assert [one.version for one in expected(cluster_of(nodes))] == ["2.21.5"]


def test_a_saved_topology_that_is_none_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<html/>")
    with pytest.raises(InputError, match="wanted <system>"):
        given([str(tmp_path / "bad.xml")])


def node(rank: int, ranks: Sequence[int], name: str = "") -> NodeView:
    told = tuple(RankReport(tp_rank=one, gpu=one % 8) for one in ranks)
    return NodeView(name=name or f"n{rank}", node_rank=rank, state=NodeState("ready"), alive=True, ranks=told)


def test_a_running_gangs_layout_is_counted_by_its_ranks() -> None:
    staged = GangView(name="pp", state=GangState.READY, nodes=(node(0, range(8)), node(1, range(8))))
    cut = GangView(name="tp", state=GangState.READY, nodes=(node(0, range(8)), node(1, range(8, 16))))
    gone = GangView(name="gone", state=GangState.ABSENT)
    found = layouts_of([staged, cut, gone])
    assert {name: (one.tensor_parallel, one.pipeline_parallel) for name, one in found.items()} == {
        "pp": (8, 2),
        "tp": (16, 1),
    }
    assert [tcp_severity(found[name]) for name in ("pp", "tp")] == [Severity.NOTE, Severity.SLOW]


def _with_memory(topology: Topology, total: int) -> Topology:
    first, *rest = topology.numa
    return replace(topology, numa=(replace(first, memory_bytes=total), *(replace(one, memory_bytes=0) for one in rest)))


def test_a_node_whose_page_cache_is_too_small_for_the_model_that_runs_is_named_with_the_price() -> None:
    cluster = cluster_of(healthy_nodes())
    names = list(cluster.topologies)
    (gang,) = {spec.gang for spec in cluster.specs.values()}
    running = tuple(node(rank, range(8 * rank, 8 * rank + 8), name) for rank, name in enumerate(names))
    seen = GangView(name=gang, state=GangState.READY, model=PROFILE.name, nodes=running, members=tuple(names[:3]))
    needed = page_cache.to_read(checkpoint_bytes(PROFILE), layouts_of([seen])[gang])
    sized = {name: _with_memory(one, 2 * needed if name == names[0] else needed) for name, one in
             cluster.topologies.items()}  # fmt: skip
    cluster = replace(cluster, layouts=layouts_of([seen]), topologies=sized)
    fits = caches_of(cluster, [seen])
    found = list(page_cache.findings(fits[gang]))
    assert [one.node for one in found] == names[1:3], "not the one with room, nor the one that has no part in the run"
    for one in found:
        assert one.id == "PAGE-CACHE-SMALL" and "GiB from the disk again" in one.effect
    assert caches_of(cluster, [replace(seen, model="gone-profile")]) == {}
    check_accept(["PAGE-CACHE-SMALL"], [], (page_cache.ID,))


def test_a_watch_of_one_node_leaves_the_findings_of_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    whole = cluster_with("node1", small_shm)
    gang = GangSpec(name="gang0", nodes=tuple(whole.specs.values()))
    inventory = Inventory(path=str(tmp_path / "hosts.yml"), gangs=(gang,))
    asked: list[tuple[str, ...]] = []

    def examine(_: object, *, accept: object, nodes: tuple[str, ...]) -> Examination:
        asked.append(nodes)
        seen = {name: one for name, one in whole.topologies.items() if not nodes or name in nodes}
        return diagnose(replace(whole, topologies=seen, snapshots={name: whole.snapshots[name] for name in seen}), {})

    monkeypatch.setattr(watching, "examine_inventory", examine)
    told = SimpleNamespace(tell=lambda _: None)
    first = watching.DoctorWatch(inventory, told, "doctor --watch 10m").look()  # type: ignore[arg-type]
    assert ("LIMITS", "node1") in {(one.id, one.node) for one in first.new}
    alone = watching.DoctorWatch(inventory, told, "doctor --watch 10m", nodes=("node2",)).look()  # type: ignore[arg-type]
    assert asked == [(), ("node2",)] and not alone.gone and not alone.silent
    again = watching.DoctorWatch(inventory, told, "doctor --watch 10m").look()  # type: ignore[arg-type]
    assert not again.new and not again.gone
