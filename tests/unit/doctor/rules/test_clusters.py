"""Every rule on machines that the lab did not write: it names the broken node and device, and nothing else. And
findings about complete clusters: the articles' wiring, two nodes, several gangs, what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.faults import FAULTS, ODD, Fault, across, fault
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_node, healthy_nodes
from tests.support.machine_files import reference_machine
from tests.support.turns import sampled
from tests.support.variants import VARIANTS, Variant
from tests.unit.doctor.rules.test_inputs import through_xml

from orchestrator.doctor.rules.reach import blamed
from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import COSTLY, all_rules, run_rules
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import NodeSpec, Overrides, Reach
from orchestrator.model.per_node import majority
from orchestrator.model.snapshot import NOT_RECORDED
from orchestrator.protocol.looks import Outcome, Trial
from orchestrator.protocol.severity import Severity
from orchestrator.topology.build import build
from orchestrator.topology.pci import ConfigSpace


def bad(cluster: Cluster) -> list[Finding]:
    return [finding for finding in run_rules(cluster) if finding.severity in COSTLY]


def wrong_cluster() -> Cluster:
    """The articles' cluster as it was found, with everything else correct."""
    nodes = healthy_nodes()
    for number, (name, node) in enumerate(nodes.items()):
        whole = node.machine
        node.machine = reference_machine(name, number, right=False)
        kept = ("/sys/module/", "/proc/driver", "/sys/class/dmi")
        node.machine.files.update({path: text for path, text in whole.files.items() if path.startswith(kept)})
        for device, known in zip(node.machine.devices, whole.devices, strict=True):
            device.update(known)
        node.host["addresses"] = node.machine.addresses
    return cluster_of(nodes)


def test_the_articles_wiring_gives_its_three_faults_first_and_nothing_else_that_matters() -> None:
    cluster = wrong_cluster()
    findings = run_rules(cluster)
    per_node = ["NIC-NOT-UNDER-SWITCH", "TRAFFIC-ON-TCP", "RDMA-PORT-DOWN"]
    assert [finding.id for finding in findings[:12]] == [name for name in per_node for _ in range(4)]
    assert not [finding for finding in findings[12:] if finding.severity in COSTLY]
    for name in cluster.topologies:
        card, traffic, ports = (finding for finding in findings[:12] if finding.node == name)
        assert card.devices == ("mlx5_2", "mlx5_3", "0000:c1:00")
        assert "in slot 6" in card.title
        assert "switch 0000:98:00.0 (NUMA 1)" in card.fix
        assert traffic.devices == ("ens9f0np0",)
        assert "one TCP port" in traffic.title
        assert "at 4 requests: about 42 instead of 154 tokens/s" in traffic.effect
        assert ports.devices == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_5")
        assert "5 of 6 RDMA ports" in ports.title


def test_one_node_of_a_gang_that_answers_has_the_same_faults_as_among_the_others() -> None:
    whole = wrong_cluster()
    name = next(iter(whole.topologies))
    alone = replace(whole, topologies={name: whole.topologies[name]}, snapshots={name: whole.snapshots[name]})
    ids = {finding.id for finding in run_rules(alone) if finding.severity in COSTLY}
    assert ids == {"NIC-NOT-UNDER-SWITCH", "TRAFFIC-ON-TCP", "RDMA-PORT-DOWN"}


def test_the_empty_slot_behind_the_lonely_switch_is_named() -> None:
    def with_an_empty_slot(node: HealthyNode) -> None:
        fault("card in a root-port slot").breaks(node)
        node.machine.write("/sys/bus/pci/slots/15", {"address": "0000:9e:00"})

    (finding,) = bad(cluster_with("node2", with_an_empty_slot))
    assert "move the card from slot 6 to slot 15, empty, behind switch 0000:98:00.0 (NUMA 1)" in finding.fix


def test_two_nodes_that_differ_are_told_of_the_cluster() -> None:
    nodes = healthy_nodes(2)
    nodes["node1"].nvml["driver"] = "550.54.15"
    (finding,) = run_rules(cluster_of(nodes))
    assert (finding.id, finding.node) == ("NODE-DIFFERS", "")
    assert "570.86.10 on node0" in finding.title
    assert "550.54.15 on node1" in finding.title


def test_gangs_are_compared_with_themselves() -> None:
    nodes = healthy_nodes(6)
    for name in ("node3", "node4", "node5"):
        nodes[name].nvml["driver"] = "550.54.15"
    assert run_rules(cluster_of(nodes, gang=lambda number: f"gang{number // 3}")) == ()


def test_tcp_that_was_asked_for_is_no_fault() -> None:
    def asks_for_tcp(node: HealthyNode) -> None:
        fault("all RDMA ports without a link").breaks(node)
        node.spec["transport"] = "tcp"

    assert "TRAFFIC-ON-TCP" not in {finding.id for finding in bad(cluster_with("node2", asks_for_tcp))}


def test_an_idle_gpu_at_generation_1_is_healthy_and_its_reserve_is_no_use() -> None:
    node = healthy_node()
    for device in node.gpus:
        device["memory"] = {"total": 46068 << 20, "free": 45453 << 20, "used": 615 << 20}
    assert all(gpu.link.speed_gts == 2.5 for gpu in cluster_of({"node0": node}).topologies["node0"].gpus)
    assert run_rules(cluster_of({"node0": node})) == ()


def test_an_unprivileged_look_is_unknown_and_never_fine() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        for path in node.files:
            if path.endswith("/config"):
                node.files[path] = node.files[path][:128]
    findings = run_rules(cluster_of(nodes))
    assert {finding.severity for finding in findings} == {Severity.UNKNOWN}
    assert {finding.id for finding in findings} == {"ACS-REDIRECT", "PCIE-SETTINGS"}
    assert "cut off at 64 bytes" in findings[0].evidence[0]


def test_limits_are_judged_where_the_engine_will_run() -> None:
    short = {"memlock": [8 << 20, 8 << 20], "nofile": [1 << 20, 1 << 20]}

    def found(**host: object) -> set[str]:
        node = healthy_node()
        node.host.update(host)
        return {finding.id for finding in bad(cluster_of({"node0": node}))}

    assert found(systemd=True, uid=0, limits_attainable=short) == set()  # the agent's unit sets them
    assert found(systemd=True, uid=1000, limits_attainable=short) == {"LIMITS"}  # only root gets a unit
    assert found(systemd=False, uid=0, limits_attainable=short) == {"LIMITS"}
    assert found(systemd=False, uid=0, limits={"memlock": [8 << 20, 8 << 20]}) == set()  # the agent may raise it


def test_a_machine_that_nobody_asked_nvml_of_is_unknown() -> None:
    machine = reference_machine()
    snapshot = machine.snapshot(nvml={"error": "not recorded"})
    spec = NodeSpec(name="node0", gang="saved", node_rank=0, reach=Reach(host="node0"))
    cluster = Cluster(topologies={"node0": build(snapshot)}, snapshots={"node0": snapshot}, specs={"node0": spec})
    assert ("NVML-UNREADABLE", Severity.UNKNOWN) in {(finding.id, finding.severity) for finding in run_rules(cluster)}


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ([], []),
        ([("a", "b")], [("b", 1)]),
        ([("a", "b"), ("c", "b"), ("d", "b")], [("b", 3)]),
        ([("b", "a"), ("b", "c"), ("b", "d")], [("b", 3)]),
        ([("a", "b"), ("b", "a"), ("c", "b"), ("b", "c"), ("d", "c")], [("b", 4), ("c", 1)]),
    ],
)
def test_the_fewest_nodes_that_explain_all_failures(
    failed: list[tuple[str, str]], expected: list[tuple[str, int]]
) -> None:
    assert [(node, len(ways)) for node, ways in blamed(failed)] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"a": 1, "b": 2}, None),
        ({"a": 1, "b": 1, "c": 1}, None),
        ({"a": 1, "b": 1, "c": 2}, (1, {"c": 2})),
        ({"a": 1, "b": 1, "c": 2, "d": 2}, None),
    ],
)
def test_majorities(values: dict[str, int], expected: tuple[int, dict[str, int]] | None) -> None:
    assert majority(values) == expected


def test_configuration_spaces_however_broken() -> None:
    assert ConfigSpace(b"").acs_control is None
    assert ConfigSpace(b"\0" * 64).max_read_request is None
    loop = bytearray(512)
    loop[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert ConfigSpace(bytes(loop)).acs_control == 0
    loop[0x34], loop[0x40], loop[0x41] = 0x40, 0x05, 0x40
    assert ConfigSpace(bytes(loop)).max_payload is None


def test_several_findings_are_ordered_by_gravity_weight_and_node() -> None:
    nodes = healthy_nodes()
    nodes["node3"].host["shm_bytes"] = 1 << 20
    nodes["node1"].gpus[0]["persistence"] = 0
    nodes["node0"].nvml["driver"] = "1"
    order = [(finding.severity, finding.node) for finding in run_rules(cluster_of(nodes))]
    assert order == [(Severity.STOP, "node3"), (Severity.SLOW, "node0"), (Severity.NOTE, "node1")]


EVERY = tuple(f"node{number}" for number in range(4))


def cluster(*closed: str, nodes: dict[str, HealthyNode] | None = None) -> Cluster:
    return replace(cluster_of(nodes or healthy_nodes()), trials=across(*closed))


def isolated(seen: Cluster) -> list[Finding]:
    return [finding for finding in run_rules(seen) if finding.id == "RAILS-ISOLATED"]


def test_isolated_rails_are_told_of_the_cluster_with_the_way_out() -> None:
    assert run_rules(cluster()) == ()
    (found,) = run_rules(cluster(*EVERY))
    assert (found.id, found.severity, found.node) == ("RAILS-ISOLATED", Severity.STOP, "")
    assert "mlx5_0 of node0 does not reach mlx5_2 of node1 (96 of 96" in found.title
    assert "NCCL_NET_DISABLE_INTRA" in found.fix and "route between the rails" in found.fix


def fast_sockets(node: HealthyNode) -> None:
    node.files["/proc/cpuinfo"] = node.files["/proc/cpuinfo"].replace("143", "207")  # 40 GB/s between the sockets


def kept_inside(node: HealthyNode) -> None:
    node.spec["overrides"] = Overrides(env=(("NCCL_NET_DISABLE_INTRA", "1"),))


@pytest.mark.parametrize("change", [fast_sockets, kept_inside])
def test_nodes_that_stay_whole_need_no_way_between_the_rails(change: Callable[[HealthyNode], None]) -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        change(node)
    assert isolated(cluster(*EVERY, nodes=nodes)) == []


@pytest.mark.parametrize("count", [2, 4])
def test_ports_of_one_card_need_not_reach_each_other(count: int) -> None:
    seen = cluster(*EVERY[:count])
    kept = tuple(
        replace(trial, far="mlx5_1" if trial.side == "mlx5_0" else "mlx5_3")
        for trial in seen.trials
        if trial.side in ("mlx5_0", "mlx5_2")
    )
    assert isolated(replace(seen, trials=kept)) == []


def within(outcome: Outcome, *, resolved: bool = True) -> tuple[Trial, ...]:
    """From card to card of each node, together with trials between the nodes that all pass."""
    inside = [
        replace(trial, target=trial.source, outcome=outcome, resolved=resolved)
        for trial in across()
        if trial.target == "node1" or (trial.source, trial.target) == ("node1", "node0")
    ]
    return (*across(), *inside)


def hearing(node: HealthyNode, netdev: str = "all", *, rp_filter: int = 0) -> None:
    node.machine.write(f"/proc/sys/net/ipv4/conf/{netdev}", {"accept_local": 1, "rp_filter": rp_filter})


def judged(trials: tuple[Trial, ...], nodes: dict[str, HealthyNode]) -> list[Finding]:
    return isolated(replace(cluster_of(nodes), trials=trials))


def test_cards_of_one_node_that_do_not_reach_each_other_are_a_stop_where_it_hears_itself() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        hearing(node)
    (found,) = judged(within(Outcome.SILENT), nodes)
    assert (found.severity, found.node) == (Severity.STOP, "")
    assert "mlx5_0 of node0 does not reach mlx5_2 of node0 (32 of 128 paths" in found.title
    alone = tuple(trial for trial in within(Outcome.SILENT) if trial.source == trial.target == "node2")
    (found,) = judged(alone, nodes)
    assert found.node == "node2"
    assert judged(within(Outcome.OPEN), nodes) == []


def test_a_gang_of_one_node_needs_the_way_too() -> None:
    node = healthy_node()
    hearing(node)
    trials = tuple(trial for trial in within(Outcome.SILENT) if trial.source == trial.target == "node0")
    (found,) = judged(trials, {"node0": node})
    assert (found.severity, found.node) == (Severity.STOP, "node0")


def test_a_node_that_does_not_hear_itself_is_unknown_where_its_arp_gets_no_answer() -> None:
    nodes = healthy_nodes()
    (found,) = judged(within(Outcome.SILENT, resolved=False), nodes)
    assert (found.severity, found.node) == (Severity.UNKNOWN, "")
    assert "accept_local=1" in found.fix and found.evidence[0].endswith("no answer to ARP")
    hearing(nodes["node0"], rp_filter=1)  # strict: dropped as well
    (found,) = judged(within(Outcome.SILENT, resolved=False), nodes)
    assert found.severity is Severity.UNKNOWN
    assert judged(within(Outcome.SILENT), nodes) == []  # behind a router: as between the nodes


PLAIN = replace(VARIANTS[0], name="plain", change=lambda _: None, hidden=False)


@pytest.mark.parametrize("nodes", [0, 1, 2, 4])
def test_nothing_is_found_on_a_healthy_cluster(nodes: int) -> None:
    assert run_rules(cluster_of(healthy_nodes(nodes))) == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_where_it_is_and_nowhere_else(fault: Fault) -> None:
    findings = run_rules(cluster_with(ODD, fault.breaks, fault.trials))
    assert {finding.node for finding in findings} == {ODD}
    meant = [finding for finding in findings if finding.id == fault.says and finding.severity is fault.severity]
    assert meant, f"no {fault.says}: {[finding.id for finding in findings]}"
    assert any(finding.devices[: len(fault.devices)] == fault.devices for finding in meant), meant
    assert {finding.id for finding in findings} <= {fault.says, *fault.also}
    for finding in findings:
        assert finding.title
        assert finding.evidence
        assert finding.effect
        assert finding.fix


def test_every_rule_is_proven_by_a_fault() -> None:
    assert {rule.id for rule in all_rules()} == {fault.says for fault in FAULTS}


HIDDEN = "PCIE-TREE-HIDDEN"
HARMLESS = ("rails that can't reach each other", "peer-to-peer switched off by l40s_env")
"""If no GPU has a card or another GPU near it, NCCL uses neither."""


def healthy(variant: Variant) -> set[str]:
    return {one.id for one in run_rules(cluster_with(ODD, lambda _: None, shape=variant.change))}


@pytest.mark.parametrize("variant", [PLAIN, *VARIANTS], ids=lambda variant: variant.name)
def test_the_shape_itself_is_no_fault_in_any_input(variant: Variant) -> None:
    assert healthy(variant) == ({HIDDEN} if variant.hidden else set())
    snapshot = cluster_with(ODD, lambda _: None, shape=variant.change).snapshots[ODD]
    bare = replace(snapshot, nvml={"error": NOT_RECORDED}, host={"hostname": ODD})
    for seen in (through_xml(snapshot), *(examine_given(Given({ODD: one})) for one in (snapshot, bare))):
        assert not [one for one in seen.findings if one.severity in COSTLY]


SHAPES = 1
"""Of the machine, for each fault; `make long` breaks machines of every shape."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_or_its_rule_says_unknown(fault: Fault) -> None:
    for variant in sampled(fault.name, VARIANTS, SHAPES):
        found_or_unknown(fault, variant)


def found_or_unknown(fault: Fault, variant: Variant) -> None:
    try:
        cluster = cluster_with(ODD, fault.breaks, fault.trials, shape=variant.change)
    except ValueError:  # the fault is in a part that this machine does not show
        assert variant.hidden
        cluster = cluster_with(ODD, lambda _: None, shape=variant.change)
    found = run_rules(cluster)
    unknown = {name for one in found if one.id == HIDDEN for name in one.devices}
    findings = [one for one in found if not (variant.hidden and one.id == HIDDEN)]
    assert {one.node for one in findings} <= {ODD}, variant.name
    meant = [one for one in found if (one.id, one.severity) == (fault.says, fault.severity)]
    assert bool(meant or fault.says in unknown) is not (variant.hidden and fault.name in HARMLESS), variant.name
    assert {one.id for one in findings} <= {fault.says, *fault.also, *unknown}, variant.name


@pytest.mark.parametrize("fault", [one for one in FAULTS if not one.trials], ids=lambda fault: fault.name)
def test_the_same_through_the_xml(fault: Fault) -> None:
    for variant in sampled(f"{fault.name}, xml", [PLAIN, *VARIANTS], SHAPES):
        found_in_xml(fault, variant)


def found_in_xml(fault: Fault, variant: Variant) -> None:
    try:
        snapshot = cluster_with(ODD, fault.breaks, shape=variant.change).snapshots[ODD]
    except ValueError:
        assert variant.hidden
        return
    findings = through_xml(snapshot).findings
    said = {one.id for one in findings if one.severity is not Severity.UNKNOWN}
    unknown = {name for one in findings if one.severity is Severity.UNKNOWN for name in (one.id, *one.devices)}
    assert fault.says in said | unknown or (variant.hidden and fault.says in _TREE), variant.name


_TREE = ("ACS-REDIRECT", "GPU-GROUPS-UNEVEN", "NIC-MISSING", "NIC-NOT-UNDER-SWITCH")
