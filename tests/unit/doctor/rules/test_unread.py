"""What was not read is unknown: without any part of what a healthy machine shows, no rule finds a fault."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.healthy_cluster import cluster_of, healthy_nodes
from tests.unit.doctor.rules.test_inputs import bad, through_xml

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import COSTLY, run_rules
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.protocol.looks import Outcome, Trial
from orchestrator.topology.build import build

WHOLE = cluster_of(healthy_nodes())
ONE = WHOLE.snapshots["node2"]
FILES = sorted({*ONE.files, *ONE.links})
FOLDERS = sorted(
    {"/".join(parts[:depth]) for path in FILES if (parts := path.split("/"))[1] in ("sys", "proc")
     for depth in range(2, len(parts))}
)  # fmt: skip
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
        WHOLE,
        snapshots={**WHOLE.snapshots, **changed},
        topologies={**WHOLE.topologies, **topologies},
        trials=trials,
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
    for folder in FOLDERS:
        found = run_rules(with_snapshots({"node0": without(WHOLE.snapshots["node0"], [folder], "ETIMEDOUT")}))
        assert [one for one in found if one.severity in COSTLY] == [], folder


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_any_files_folders_and_parts(data: st.DataObject) -> None:
    places = st.one_of(st.sampled_from(FILES), st.sampled_from(FOLDERS), st.sampled_from(PARTS))
    nodes = data.draw(st.sets(st.sampled_from(sorted(WHOLE.snapshots)), min_size=1))
    changed = {
        name: without(WHOLE.snapshots[name], data.draw(st.sets(places, min_size=1, max_size=20)), data.draw(REASONS))
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
    other = WHOLE.snapshots["node1"]
    broken = replace(other, files={**other.files, down: "1: DOWN"})
    cluster = with_snapshots({"node1": broken, "node2": without(ONE, ["/sys/class/net"], "ETIMEDOUT")})
    found = [(one.id, one.node) for one in run_rules(cluster) if one.severity in COSTLY]
    assert found == [("RDMA-PORT-DOWN", "node1")]


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
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
