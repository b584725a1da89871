"""However broken a node's files and answers are, rules give readable findings, and the other nodes are not affected."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_node, healthy_nodes
from tests.support.machine_files import reference_machine

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import build

ODD = "node1"
NOISE = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "-1", "0x", "255", "4: ACTIVE", "1: DOWN", "InfiniBand", "Unknown", "99.9 GT/s PCIe", "\udc80\x1b[2J",
         "00" * 300, "zz", "ff" * 4096, "9" * 5000, "0000:0000:0000:0000:0000:ffff:0a01:000b", "TOTAL_ERR_COR x",
         "TOTAL_ERR_FATAL 9", "DMA", "a\n\nb = c\n", "eth0 eth0"]
    ),
)  # fmt: skip
WORDS = st.one_of(st.none(), st.booleans(), st.integers(-3, 1 << 40), st.text(max_size=8), st.just("0000:18:00.0"))
KEYS = ("0", "1", "read", "used", "total", "uncorrected", "pid", "xid", "memlock")
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
    """All findings, each of them in complete sentences."""
    findings = run_rules(cluster)
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
    gone = data.draw(st.lists(st.sampled_from(files), max_size=20))
    changed = data.draw(st.dictionaries(st.sampled_from(files), NOISE, max_size=20))
    bent = data.draw(st.dictionaries(st.sampled_from(links), st.sampled_from(files + links), max_size=5))

    def mutate(node: HealthyNode) -> None:
        for path in gone:
            node.files.pop(path, None)
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
