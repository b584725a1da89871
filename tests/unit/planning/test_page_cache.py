"""Whether the weight files fit into the nodes' memory."""

from __future__ import annotations

import pytest

from orchestrator.model.finding import Severity
from orchestrator.planning import page_cache
from orchestrator.protocol.planned import Layout

GIB = 1 << 30


@pytest.mark.parametrize(
    ("tensor", "pipeline", "nodes", "share"), [(32, 1, 4, 1.0), (8, 4, 4, 0.25), (4, 8, 4, 0.25), (8, 2, 1, 1.0)]
)
def test_a_node_reads_the_files_of_its_stages(tensor: int, pipeline: int, nodes: int, share: float) -> None:
    layout = Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, nnodes=nodes, gpus_per_node=8)
    assert page_cache.to_read(640 * GIB, layout) == int(640 * GIB * share)


def test_a_node_with_too_little_memory_is_named() -> None:
    nodes = page_cache.fits(dict.fromkeys(("node0", "node1"), 640 * GIB), {"node0": 960 * GIB, "node1": 472 * GIB})
    assert "do not fit on node1" in page_cache.words(nodes)
    (finding,) = page_cache.findings(nodes)
    assert (finding.node, finding.severity) == ("node1", Severity.NOTE)
    assert "640 GiB" in finding.title
    assert "472 GiB" in finding.title
    assert (
        finding.effect == "each start reads 168 GiB from the disk again: 36 s at 5 GB/s, 180 s at 1 GB/s (calculated)"
    )


def test_what_fits_is_said_and_no_finding() -> None:
    nodes = page_cache.fits({"node0": 640 * GIB}, {"node0": 960 * GIB})
    assert page_cache.words(nodes).endswith("they fit")
    assert list(page_cache.findings(nodes)) == []


def test_each_node_is_judged_by_its_own_files() -> None:
    nodes = page_cache.fits({"node0": 166 * GIB, "node1": 640 * GIB}, dict.fromkeys(("node0", "node1"), 472 * GIB))
    assert [finding.node for finding in page_cache.findings(nodes)] == ["node1"]
    assert "640 GiB" in page_cache.words(nodes)


def test_nothing_is_said_of_nodes_that_were_not_read() -> None:
    assert page_cache.words(page_cache.fits({"node0": 640 * GIB}, {})) == ""
    assert page_cache.words(page_cache.fits({"node0": 0}, {"node0": GIB})) == ""
