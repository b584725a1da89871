"""However broken a node's files and answers are, rules give readable findings, and the other nodes are not affected.
What was not read is unknown: without any part of what a healthy machine shows, no rule finds a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_node, healthy_nodes
from tests.support.machine_files import reference_machine
from tests.support.turns import sampled
from tests.support.variants import nested_node, on_root_ports
from tests.support.waiting import examples
from tests.unit.doctor.rules.test_inputs import bad, through_xml

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import COSTLY, run_rules
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import NodeSpec, Overrides, Reach
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.protocol.looks import Outcome, Trial
from orchestrator.protocol.severity import Severity
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
    "0", "1", "devices", "index", "pci_bus_id", "addresses", "eth0", "read", "used", "total", "uncorrected", "pid",
    "xid", "memlock",
)  # fmt: skip
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


@settings(max_examples=examples(30))
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


@settings(max_examples=examples(30))
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


def cut_off(node: HealthyNode, kept: int) -> None:
    for path in _paths()[0][kept:]:
        node.files.pop(path, None)


def halved(node: HealthyNode) -> None:
    for path in node.files:
        node.files[path] = node.files[path][: len(node.files[path]) // 2]


def bent(node: HealthyNode) -> None:
    node.links.update(dict.fromkeys(node.links, "."))
    node.links.update({"/sys/class/net": "/sys/class/net2", "/sys/class/net2": "/sys/class/net"})


def test_trees_and_texts_cut_off_anywhere_and_links_that_lead_in_circles() -> None:
    cuts: list[Callable[[HealthyNode], None]] = [partial(cut_off, kept=kept) for kept in range(0, len(_paths()[0]), 60)]
    for change in [*cuts, halved, bent]:
        judged(cluster_with(ODD, change))


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
    ("off", "words"),
    [([5], "where GPUs differ in memory, the smallest limits"), (range(8), "a sixteenth of the memory")],
)
def test_ecc_says_what_it_costs_in_memory(off: list[int], words: str) -> None:
    node = healthy_node()
    for index in off:
        node.gpus[index]["ecc"] = {"enabled": 0}
    (one,) = [one for one in run_rules(cluster_of({"node0": node})) if one.id == "GPU-ECC"]
    assert words in one.effect


SOUND = cluster_of(healthy_nodes())
ONE = SOUND.snapshots["node2"]
FILES = sorted({*ONE.files, *ONE.links})
FOLDERS = sorted(
    {"/".join(parts[:depth]) for path in FILES if (parts := path.split("/"))[1] in ("sys", "proc")
     for depth in range(2, len(parts))}
)  # fmt: skip
FOLDERS_PLAYED = 30
PARTS = ("PCI", "network interfaces", "RDMA devices", "processors", "system", "installed stack")
PART_OF = {
    "PCI": ("/sys/bus", "/sys/devices/pci"),
    "network interfaces": ("/sys/class/net", "/proc/sys/net"),
    "RDMA devices": ("/sys/class/infiniband",),
    "processors": ("/sys/devices/system", "/proc/cpuinfo"),
    "system": ("/proc", "/sys/module", "/sys/kernel/mm", "/sys/class/dmi"),
    "installed stack": ("/opt",),
}
REASONS = st.sampled_from(["ETIMEDOUT", "ECHILD", "EACCES", "EIO"])


def without(snapshot: Snapshot, places: Collection[str], reason: str) -> Snapshot:
    """A snapshot of a look that did not get through at these files, folders and parts."""
    tops = tuple(top for place in places for top in PART_OF.get(place, (f"{place}/",)))

    def left(table: Mapping[str, str]) -> dict[str, str]:
        return {path: text for path, text in table.items() if path not in places and not path.startswith(tops)}

    errors = {**snapshot.errors, **dict.fromkeys(places, reason)}
    return replace(snapshot, files=left(snapshot.files), links=left(snapshot.links), errors=errors)


def with_snapshots(changed: Mapping[str, Snapshot], trials: tuple[Trial, ...] = ()) -> Cluster:
    topologies = {name: build(snapshot) for name, snapshot in changed.items()}
    return replace(
        SOUND, snapshots={**SOUND.snapshots, **changed}, topologies={**SOUND.topologies, **topologies}, trials=trials
    )


def costly(changed: Mapping[str, Snapshot]) -> list[Finding]:
    """Stop and slow in every form that these snapshots can be judged in."""
    found = [one for one in run_rules(with_snapshots(changed)) if one.severity in COSTLY]
    for name, snapshot in changed.items():
        found += bad(examine_given(Given({name: snapshot})))
        found += bad(examine_given(Given({name: replace(snapshot, nvml={"error": NOT_RECORDED}, host={})})))
        found += bad(through_xml(snapshot))
    return found


def test_any_one_folder() -> None:
    for folder in sampled("a folder", FOLDERS, FOLDERS_PLAYED):
        found = run_rules(with_snapshots({"node0": without(SOUND.snapshots["node0"], [folder], "ETIMEDOUT")}))
        assert [one for one in found if one.severity in COSTLY] == [], folder


@settings(max_examples=examples(20), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_any_files_folders_and_parts(data: st.DataObject) -> None:
    places = st.one_of(st.sampled_from(FILES), st.sampled_from(FOLDERS), st.sampled_from(PARTS))
    nodes = data.draw(st.sets(st.sampled_from(sorted(SOUND.snapshots)), min_size=1))
    changed = {
        name: without(SOUND.snapshots[name], data.draw(st.sets(places, min_size=1, max_size=20)), data.draw(REASONS))
        for name in sorted(nodes)
    }
    assert costly(changed) == []


@pytest.mark.parametrize("place", [*PARTS, "/sys/class/infiniband", "/sys/class/net", "/sys/bus/pci/devices", "/sys"])
def test_a_whole_part_is_named_with_the_rules_that_need_it(place: str) -> None:
    cluster = with_snapshots({"node2": without(ONE, [place], "ETIMEDOUT")})
    found = run_rules(cluster)
    assert [one for one in found if one.severity in COSTLY] == []
    if place in ("system", "installed stack"):
        return
    named = [one for one in found if one.severity is Severity.UNKNOWN and one.node == "node2"]
    assert f"{place}: ETIMEDOUT" in {words for one in named for words in one.evidence}
    (all_of_it,) = [one for one in named if one.id == "NOT-RECORDED"]
    assert "NIC-MISSING" in all_of_it.devices or place == "processors"


def test_the_kernel_s_answer_that_there_is_nothing_is_no_gap() -> None:
    answers = {"/sys/class/infiniband": "ENOENT", "/sys/class/net/ens2f0np0/carrier": "EINVAL"}
    assert not build(replace(ONE, errors=answers)).unread
    assert not build(ONE).unread


def test_a_gap_of_one_node_hides_no_fault_of_another() -> None:
    down = next(path for path in FILES if "/infiniband/mlx5_1/" in path and path.endswith("/state"))
    other = SOUND.snapshots["node1"]
    broken = replace(other, files={**other.files, down: "1: DOWN"})
    cluster = with_snapshots({"node1": broken, "node2": without(ONE, ["/sys/class/net"], "ETIMEDOUT")})
    found = [(one.id, one.node) for one in run_rules(cluster) if one.severity in COSTLY]
    assert found == [("RDMA-PORT-DOWN", "node1")]


@settings(max_examples=examples(20), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_any_of_nvml_s_answers_and_of_the_host_s_facts(data: st.DataObject) -> None:
    devices = [
        {
            name: value
            for name, value in device.items()
            if name not in data.draw(st.sets(st.sampled_from(sorted(device))))
        }
        for device in ONE.nvml["devices"]
    ]
    nvml = {"driver": ONE.nvml["driver"], "devices": devices}
    lost = data.draw(st.sets(st.sampled_from(sorted(nvml))))
    unheard = data.draw(st.sets(st.sampled_from(sorted(ONE.host))))
    host = {
        name: {
            key: inner for key, inner in value.items() if key not in data.draw(st.sets(st.sampled_from(sorted(value))))
        }
        if isinstance(value, dict) and value and name != "addresses"
        else value
        for name, value in ONE.host.items()
        if name not in unheard
    }
    left = {name: value for name, value in nvml.items() if name not in lost}
    assert costly({"node2": replace(ONE, nvml=left, host=host)}) == []


@pytest.mark.parametrize(
    "nvml",
    [{}, {"error": "NVML did not respond within 15 s: the machine is too busy", "unread": "ETIMEDOUT"},
     {"devices": [], "errors": {"nvmlDeviceGetCount": "NVMLError_Timeout: Timeout"}}],
)  # fmt: skip
def test_without_nvml_s_answer_no_gpu_is_missing(nvml: dict[str, object]) -> None:
    found = run_rules(with_snapshots({"node2": replace(ONE, nvml=nvml)}))
    assert [one for one in found if one.severity in COSTLY] == []
    assert "GPU-MISSING" in {name for one in found if one.id == "NOT-RECORDED" for name in one.devices}


@pytest.mark.parametrize("path", [path for path in FILES if path.startswith("/sys/")][::41])
def test_a_file_that_left_no_error_is_missed_all_the_same(path: str) -> None:
    files, links = dict(ONE.files), dict(ONE.links)
    files.pop(path, None)
    links.pop(path, None)
    found = costly({"node2": replace(ONE, files=files, links=links)})
    assert {one.id for one in found} <= {"GDR-MISSING"}  # a module's file that is not there is a module that is not


def test_a_full_table_of_neighbours_is_no_blocked_port() -> None:
    ways = [("node0", "node2", Outcome.UNTRIED), ("node0", "node1", Outcome.OPEN), ("node2", "node0", Outcome.SILENT)]
    trials = tuple(
        Trial(source=source, target=target, address="10.0.0.1", port=29500, kind="tcp", side="tcp", outcome=outcome)
        for source, target, outcome in ways
    )
    (found,) = [one for one in run_rules(with_snapshots({}, trials)) if one.id == "PORT-BLOCKED"]
    assert (found.severity, found.node) == (Severity.UNKNOWN, "node0")
    assert "gc_thresh3" in found.fix and "1 of 2 paths" in found.title


@pytest.mark.parametrize("outcome", [Outcome.SILENT, Outcome.OPEN])
def test_trials_of_a_node_that_was_not_read_are_still_judged(outcome: Outcome) -> None:
    trials = tuple(
        Trial(source=name, target="node2", address="10.0.0.13", port=29500, kind="tcp", side="tcp", outcome=outcome)
        for name in ("node0", "node1", "node3")
    )
    cluster = with_snapshots({"node2": without(ONE, ["/sys/class/net"], "ETIMEDOUT")}, trials)
    ids = [one.id for one in run_rules(cluster) if one.severity in COSTLY]
    assert ids == (["PORT-BLOCKED"] if outcome is Outcome.SILENT else [])
