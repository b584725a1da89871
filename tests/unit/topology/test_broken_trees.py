"""However broken a machine's files are, a topology, a drawing and a document are produced."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.machine_files import reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.distance import Distances
from orchestrator.topology.document import topology_json
from orchestrator.topology.draw import summary, tree
from orchestrator.topology.network import rails, tcp_interface

WHOLE = reference_machine().snapshot()
WRONG = reference_machine("node1", 1, right=False).snapshot()
FILES, LINKS = sorted(WHOLE.files), sorted(WHOLE.links)

NOISE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "-1", "0x", "0xffffff", "0x030200", "0x060400", "4294967296", "Unknown", "\udc80\x1b[2J", "9" * 5000,
         "99.9 GT/s PCIe", "4: ACTIVE", "1e9 Gb/sec", "0000:0000:0000:0000:0000:ffff:0a01:000b", "eth0 eth0 eth0"]
    ),
)  # fmt: skip
PATHS = st.one_of(
    st.sampled_from(FILES + LINKS),
    st.sampled_from([
        "/sys/devices/pci0000:15/0000:15:01.0", "/sys/devices/pci10000:00/10000:00:00.0/class",
        "/sys/devices/pci0000:15/0000:43:00.0/class", "/sys/devices/pci0000:97/0000:43:00.0/class",
        "/sys/class/net/eth9/mtu", "/sys/class/infiniband/x/ports/1/gids/0", "/sys/class/infiniband/x/ports/0/state",
        "/sys/devices/system/node/node٣/cpulist", "/sys/bus/pci/slots/0/address", "/", "relative",
    ]),
)  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["devices", "index", "memory", "link", "errors",
                                                                     "pci_bus_id", "addresses", "eth0"]), inner)
    ),
    max_leaves=8,
)  # fmt: skip


def everything(snapshot: Snapshot) -> None:
    """Everything that is made from one snapshot, beside a complete one."""
    topology = build(snapshot, BuildOptions())
    distances = Distances(topology)
    keys = [gpu.key for gpu in topology.gpus] + [port.key for port in topology.rdma]
    for one in keys[:4]:
        for other in keys:
            assert distances.path_type(one, other) == distances.path_type(other, one)
    tcp = tcp_interface({"broken": topology, "whole": build(WRONG)})
    assert tree(topology, tcp.get("broken")) and summary(topology)
    assert {rail.port for rail in rails(topology)} <= set(topology.rdma)
    json.dumps(topology_json(topology, tcp.get("broken")))


def test_a_whole_one() -> None:
    everything(WHOLE)
    everything(WRONG)


@settings(max_examples=60)
@given(st.data())
def test_mutated(data: st.DataObject) -> None:
    files, links = dict(WHOLE.files), dict(WHOLE.links)
    for path in data.draw(st.lists(st.sampled_from(FILES), max_size=30)):
        files.pop(path, None)
    for path in data.draw(st.lists(st.sampled_from(LINKS), max_size=10)):
        links.pop(path, None)
    files |= data.draw(st.dictionaries(PATHS, NOISE, max_size=15))
    links |= data.draw(st.dictionaries(PATHS, PATHS, max_size=5))
    everything(Snapshot(node="broken", taken_at=0.0, files=files, links=links, nvml=WHOLE.nvml, host=WHOLE.host))


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["devices", "driver", "error"]), JSON), st.dictionaries(
    st.sampled_from(["addresses", "hostname"]), JSON))  # fmt: skip
def test_nonsense_from_nvml_and_host(nvml: dict[str, object], host: dict[str, object]) -> None:
    everything(Snapshot(node="broken", taken_at=0.0, files=WHOLE.files, links=WHOLE.links, nvml=nvml, host=host))


def test_a_tree_cut_off_at_every_depth() -> None:
    for kept in range(0, len(FILES), 25):
        files = {path: WHOLE.files[path] for path in FILES[:kept]}
        everything(Snapshot(node="cut", taken_at=0.0, files=files, links=WHOLE.links, nvml=WHOLE.nvml))


def test_texts_cut_off_in_the_middle() -> None:
    files = {path: text[: len(text) // 2] for path, text in WHOLE.files.items()}
    everything(Snapshot(node="cut", taken_at=0.0, files=files, links=WHOLE.links, nvml=WHOLE.nvml, host=WHOLE.host))


def test_links_that_lead_in_circles() -> None:
    links = dict.fromkeys(WHOLE.links, ".")
    links |= {"/sys/class/net": "/sys/class/net2", "/sys/class/net2": "/sys/class/net"}
    everything(Snapshot(node="round", taken_at=0.0, files=WHOLE.files, links=links, nvml=WHOLE.nvml))
