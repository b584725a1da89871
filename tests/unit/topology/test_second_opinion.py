"""An independent walk by NCCL's rules agrees with the product, on machines of every shape."""

from __future__ import annotations

import json
from itertools import combinations

from hypothesis import given, settings
from tests.support.machine_files import reference_machine
from tests.support.machines import nested_node
from tests.support.nccl_walk import Walk
from tests.support.random_machines import Grown, any_machine

from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances
from orchestrator.topology.document import paths_json
from orchestrator.topology.nccl_xml import nccl_xml, topology_of_xml
from orchestrator.topology.paths import matrix


@settings(max_examples=80, deadline=None)
@given(any_machine())
def test_path_types_of_every_pair(grown: Grown) -> None:
    topology = build(grown.machine.snapshot(nvml={"error": "not recorded"}))
    walk, distances = Walk(grown.machine.files, grown.gpus, grown.nics), Distances(topology)
    nics = frozenset(grown.nics)
    for one, other in combinations([*grown.gpus, *grown.nics], 2):
        assert distances.path_type(one, other).name == walk.type(one, other, nics=nics), (one, other)


@settings(max_examples=30, deadline=None)
@given(any_machine())
def test_the_xml_reads_back_with_the_same_path_types(grown: Grown) -> None:
    topology = build(grown.machine.snapshot(nvml={"error": "not recorded"}))
    again = topology_of_xml(nccl_xml(topology), "node0")
    assert paths_json(again) == paths_json(topology)
    json.dumps(paths_json(topology))
    lines = [
        line.split("\t") for line in matrix(topology).splitlines() if line.startswith(("GPU", "NIC")) and "\t" in line
    ]
    words = {(row, column): line[1 + column] for row, line in enumerate(lines) for column in range(len(lines))}
    assert all(words[row, column] == words[column, row] for row, column in words)


def test_the_walk_knows_the_machines_that_are_known() -> None:
    """The second opinion itself, on machines whose path types are known otherwise."""
    for machine, expected in ((reference_machine(), "SYS"), (nested_node().machine, "PXB")):
        topology = build(machine.snapshot())
        keys = [gpu.key for gpu in topology.gpus]
        walk = Walk(machine.files, keys, [port.key for port in topology.rdma])
        nics = frozenset(port.key for port in topology.rdma)
        assert walk.type(keys[0], keys[1], nics=nics) == "PIX"
        assert walk.type(keys[0], keys[2 if expected == "PXB" else 4], nics=nics) == expected
        assert walk.type(keys[0], topology.rdma[0].key, nics=nics) == ("PXB" if expected == "PXB" else "PIX")
