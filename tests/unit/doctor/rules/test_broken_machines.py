"""However broken a node's files and answers are, rules give readable findings, and the other nodes are not affected."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_node, healthy_nodes
from tests.support.machine_files import reference_machine
from tests.support.variants import nested_node, on_root_ports

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import NodeSpec, Overrides, Reach
from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances
from orchestrator.topology.draw import summary, topology_json, tree
from orchestrator.topology.network import rails, tcp_interface

ODD = "node1"
WHOLE = build(reference_machine("node9", 9, right=False).snapshot())
NOISE = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "-1", "0x", "255", "4: ACTIVE", "1: DOWN", "InfiniBand", "Unknown", "99.9 GT/s PCIe", "\udc80\x1b[2J",
         "0xffffff", "0x060400", "1e9 Gb/sec",
         "00" * 300, "zz", "ff" * 4096, "9" * 5000, "0000:0000:0000:0000:0000:ffff:0a01:000b", "TOTAL_ERR_COR x",
         "TOTAL_ERR_FATAL 9", "DMA", "a\n\nb = c\n", "eth0 eth0"]
    ),
)  # fmt: skip
ODD_PATHS = (
    "/sys/devices/pci0000:15/0000:15:01.0", "/sys/devices/pci10000:00/10000:00:00.0/class",
    "/sys/devices/pci0000:15/0000:43:00.0/class", "/sys/devices/pci0000:97/0000:43:00.0/class",
    "/sys/class/net/eth9/mtu", "/sys/class/infiniband/x/ports/1/gids/0", "/sys/class/infiniband/x/ports/0/state",
    "/sys/devices/system/node/node٣/cpulist", "/sys/bus/pci/slots/0/address", "/", "relative",
)  # fmt: skip
WORDS = st.one_of(st.none(), st.booleans(), st.integers(-3, 1 << 40), st.text(max_size=8), st.just("0000:18:00.0"))
KEYS = (
    "0",
    "1",
    "devices",
    "index",
    "pci_bus_id",
    "addresses",
    "eth0",
    "read",
    "used",
    "total",
    "uncorrected",
    "pid",
    "xid",
    "memlock",
)
JSON = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip
GPU_KEYS = sorted(healthy_node().gpus[0])
HOST_KEYS = sorted(healthy_node().host)


@cache
def _paths() -> tuple[list[str], list[str]]:
    node = healthy_node()
    return sorted(node.files), sorted(node.links)


def judged(cluster: Cluster) -> tuple[Finding, ...]:
    """All findings, each of them in complete sentences; and everything else that is made of a broken node."""
    findings = run_rules(cluster)
    for topology in (one for name, one in cluster.topologies.items() if name in (ODD, "node0", "empty")):
        distances, tcp = Distances(topology), tcp_interface({"broken": topology, "whole": WHOLE}).get("broken")
        keys = [gpu.key for gpu in topology.gpus] + [port.key for port in topology.rdma]
        for one, other in product(keys[:4], keys):
            assert distances.path_type(one, other) == distances.path_type(other, one)
        assert tree(topology, tcp) and summary(topology) and json.dumps(topology_json(topology, tcp))
        assert {rail.port for rail in rails(topology)} <= set(topology.rdma)
    for finding in findings:
        assert isinstance(finding.title, str)
        assert all(
            isinstance(words, str) for words in (*finding.evidence, *finding.devices, finding.effect, finding.fix)
        )
        assert finding.title and finding.fix and finding.evidence, finding.id
    return findings


@settings(max_examples=30)
@given(st.data())
def test_mutated_files(data: st.DataObject) -> None:
    files, links = _paths()
    gone = data.draw(st.lists(st.sampled_from(files + links), max_size=30))
    paths = st.one_of(st.sampled_from(files), st.sampled_from(links), st.sampled_from(ODD_PATHS))
    changed = data.draw(st.dictionaries(paths, NOISE, max_size=20))
    bent = data.draw(st.dictionaries(paths, paths, max_size=5))

    def mutate(node: HealthyNode) -> None:
        for path in gone:
            node.files.pop(path, None)
            node.links.pop(path, None)
        node.files.update(changed)
        node.links.update(bent)

    judged(cluster_with(ODD, mutate))


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from(GPU_KEYS), JSON, max_size=6),
    st.dictionaries(st.sampled_from(HOST_KEYS), JSON, max_size=5),
    st.dictionaries(st.sampled_from(["driver", "devices", "error"]), JSON, max_size=2),
)
def test_nonsense_from_nvml_and_host(gpu: dict[str, object], host: dict[str, object], nvml: dict[str, object]) -> None:
    def mutate(node: HealthyNode) -> None:
        node.gpus[3].update(gpu)
        node.host.update(host)
        node.nvml.update(nvml)

    judged(cluster_with(ODD, mutate))


def test_a_tree_cut_off_anywhere() -> None:
    files, _ = _paths()
    for kept in range(0, len(files), 60):

        def cut(node: HealthyNode, kept: int = kept) -> None:
            for path in files[kept:]:
                node.files.pop(path, None)

        judged(cluster_with(ODD, cut))


def test_texts_cut_off_in_the_middle() -> None:
    def cut(node: HealthyNode) -> None:
        for path in node.files:
            node.files[path] = node.files[path][: len(node.files[path]) // 2]

    judged(cluster_with(ODD, cut))


def test_links_that_lead_in_circles() -> None:
    def bend(node: HealthyNode) -> None:
        node.links.update(dict.fromkeys(node.links, "."))
        node.links.update({"/sys/class/net": "/sys/class/net2", "/sys/class/net2": "/sys/class/net"})

    judged(cluster_with(ODD, bend))


def test_an_empty_snapshot_among_whole_ones() -> None:
    nodes = healthy_nodes()
    whole = cluster_of(nodes)
    empty = Snapshot(node="empty", taken_at=0.0, files={})
    spec = NodeSpec(name="empty", gang="gang0", node_rank=4, reach=Reach(host="10.0.0.99"))
    cluster = Cluster(
        topologies={**whole.topologies, "empty": build(empty)},
        snapshots={**whole.snapshots, "empty": empty},
        specs={**whole.specs, "empty": spec},
    )
    findings = judged(cluster)
    assert {finding.node for finding in findings} <= {"empty", ""}
    assert "GPU-MISSING" in {finding.id for finding in findings}


def test_a_machine_without_anything_but_pci() -> None:
    snapshot = reference_machine().snapshot(nvml={}, host={})
    spec = NodeSpec(name="node0", gang="saved", node_rank=0, reach=Reach(host="node0"))
    judged(Cluster(topologies={"node0": build(snapshot)}, snapshots={"node0": snapshot}, specs={"node0": spec}))


def fast_sockets(name: str = "node0", number: int = 0) -> HealthyNode:
    """The reference on processors with 40 GB/s between the sockets: NCCL does not split such a node."""
    node = healthy_node(name, number)
    node.files["/proc/cpuinfo"] = node.files["/proc/cpuinfo"].replace("143", "207")
    return node


def without_cards(name: str = "node0", number: int = 0) -> HealthyNode:
    node = fast_sockets(name, number)
    for table in (node.files, node.links):
        for path in [path for path in table if "/infiniband" in path]:
            del table[path]
    return node


def found(make: Callable[[str, int], HealthyNode], setting: str, nodes: int = 2) -> list[Finding]:
    name, _, value = setting.partition("=")
    made = {f"node{n}": make(f"node{n}", n) for n in range(nodes)}
    made["node0"].spec["overrides"] = Overrides(env=((name, value),))
    return [one for one in run_rules(cluster_of(made)) if one.id == "NCCL-SETTINGS"]


@pytest.mark.parametrize(
    ("make", "setting", "words"),
    [
        (healthy_node, "NCCL_P2P_DISABLE=1", "12 of 28 pairs of GPUs communicate through host memory"),
        (healthy_node, "NCCL_P2P_LEVEL=LOC", "12 of 28 pairs"),
        (nested_node, "NCCL_P2P_DISABLE=1", "12 of 28 pairs"),
        (healthy_node, "NCCL_IB_DISABLE=1", "between nodes crosses TCP, 4 RDMA ports stay unused"),
        (healthy_node, "NCCL_NET=Socket", "between nodes crosses TCP"),
        (fast_sockets, "NCCL_SHM_DISABLE=1",
         "over the RDMA cards (12.5 GB/s a port) instead of host memory (24 GB/s)"),
        (without_cards, "NCCL_SHM_DISABLE=1", "16 pairs of GPUs communicate over TCP instead of host memory"),
        (on_root_ports, "NCCL_SHM_DISABLE=1", "28 pairs"),
        (healthy_node, "NCCL_NET_GDR_LEVEL=LOC", "all data between card and GPU passes through host memory"),
    ],
)  # fmt: skip
def test_what_a_setting_costs_is_of_this_machine(
    make: Callable[[str, int], HealthyNode], setting: str, words: str
) -> None:
    (one,) = found(make, setting)
    assert (one.severity, one.node, one.devices) == (Severity.SLOW, "node0", (setting.partition("=")[0],))
    assert words in one.effect


@pytest.mark.parametrize(
    ("make", "setting", "nodes"),
    [
        (on_root_ports, "NCCL_P2P_DISABLE=1", 2),  # no pair is near enough for P2P
        (healthy_node, "NCCL_P2P_DISABLE=0", 2),
        (healthy_node, "NCCL_P2P_LEVEL=PXB", 2),
        (fast_sockets, "NCCL_IB_DISABLE=1", 1),  # a single unsplit node needs no network
        (without_cards, "NCCL_IB_DISABLE=1", 2),
        (healthy_node, "NCCL_NET=IB", 2),
        (healthy_node, "NCCL_SHM_DISABLE=1", 2),  # the halves connect over the cards anyway
        (on_root_ports, "NCCL_NET_GDR_LEVEL=LOC", 2),  # no card is near enough for GPUDirect RDMA
        (healthy_node, "NCCL_DEBUG=INFO", 2),
    ],
)
def test_what_takes_nothing_away_here_is_no_finding(
    make: Callable[[str, int], HealthyNode], setting: str, nodes: int
) -> None:
    assert found(make, setting, nodes) == []


def test_a_node_of_its_own_in_halves_needs_its_cards() -> None:
    (one,) = found(healthy_node, "NCCL_IB_DISABLE=1", 1)
    assert "between the halves of the node crosses TCP" in one.effect


def in_files(**host: object) -> list[Finding]:
    node = healthy_node()
    node.host.update(host)
    return [one for one in run_rules(cluster_of({"node0": node})) if one.id == "NCCL-FILES"]


def test_the_file_of_the_engines_user_counts_as_the_machines() -> None:
    path = "/var/lib/l40s/.nccl.conf"
    (one,) = in_files(nccl_conf={"path": path, "text": "#NCCL_IB_DISABLE=1\nNCCL_P2P_DISABLE=1\n"})
    assert (one.severity, one.devices, one.evidence) == (Severity.NOTE, (path,), (f"{path}: NCCL_P2P_DISABLE=1",))
    assert "NCCL_P2P_DISABLE: 12 of 28 pairs" in one.effect
    assert in_files(nccl_conf={"path": path, "text": ""}) == in_files(nccl_conf={}) == in_files(nccl_conf=None) == []


def test_a_file_that_nobody_may_read_is_unknown() -> None:
    (one,) = in_files(nccl_conf={"path": "/var/lib/l40s/.nccl.conf", "error": "EACCES"})
    assert (one.severity, one.evidence) == (Severity.UNKNOWN, ("/var/lib/l40s/.nccl.conf: EACCES",))


@pytest.mark.parametrize(
    ("off", "total", "sm", "words"),
    [
        ([5], 49140, [8, 9], "the GPUs with ECC have 46068 MiB, 3072 MiB less than those without"),
        ([5], 46068, [8, 9], "where GPUs differ in memory, the smallest limits"),
        (range(8), 49140, [8, 9], "ECC would take about 3071 of 49140 MiB of each GPU"),
        (range(8), 143771, [9, 0], "none of those with HBM"),
    ],
)
def test_ecc_says_what_it_costs_in_memory(off: list[int], total: int, sm: list[int], words: str) -> None:
    node = healthy_node()
    for index, gpu in enumerate(node.gpus):
        gpu["compute_capability"] = sm
        if index in off:
            gpu["ecc"] = {"enabled": 0}
            gpu["memory"] = {"total": total << 20}
    (one,) = [one for one in run_rules(cluster_of({"node0": node})) if one.id == "GPU-ECC"]
    assert words in one.effect
