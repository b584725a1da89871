"""Whether the weight files fit into the nodes' memory."""

from __future__ import annotations

import pytest

from orchestrator.model.topology import NumaDomain, Topology
from orchestrator.planning import page_cache
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.severity import Severity

GIB = 1 << 30


@pytest.mark.parametrize(
    ("tensor", "pipeline", "nodes", "share"), [(32, 1, 4, 1.0), (8, 4, 4, 0.25), (4, 8, 4, 0.25), (8, 2, 1, 1.0)]
)
def test_a_node_reads_the_files_of_its_stages(tensor: int, pipeline: int, nodes: int, share: float) -> None:
    layout = Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, nnodes=nodes, gpus_per_node=8)
    assert page_cache.to_read(640 * GIB, layout) == int(640 * GIB * share)


def judged(model_gib: int, *rooms_gib: int) -> page_cache.Fits:
    """Of nodes with room for so many GiB beside 8 ranks."""
    layout = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
    numa = {f"node{number}": (NumaDomain(node=0, memory_bytes=(gib + 40) * GIB),)
            for number, gib in enumerate(rooms_gib)}  # fmt: skip
    known = {name: Topology(node=name, numa=domains) for name, domains in numa.items()}
    return page_cache.fits(model_gib * GIB, layout, [*known, "unknown"], known)


def test_a_node_with_too_little_memory_is_named() -> None:
    nodes = judged(640, 960, 472)
    assert "do not fit on node1" in page_cache.words(nodes)
    (finding,) = page_cache.findings(nodes)
    assert (finding.node, finding.severity) == ("node1", Severity.NOTE)
    assert "640 GiB" in finding.title
    assert "472 GiB" in finding.title
    assert (
        finding.effect == "each start reads 168 GiB from the disk again: 36 s at 5 GB/s, 180 s at 1 GB/s (calculated)"
    )


def test_what_fits_is_said_and_no_finding() -> None:
    nodes = judged(640, 960)
    assert page_cache.words(nodes).endswith("they fit")
    assert list(page_cache.findings(nodes)) == []


def test_nothing_is_said_of_nodes_that_were_not_read() -> None:
    assert page_cache.words(judged(640)) == page_cache.words(judged(0, 960)) == ""
