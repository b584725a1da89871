"""What machines showed around a run: throttled GPUs, and counters that grew."""

from __future__ import annotations

from tests.support.healthy_cluster import HealthyNode, cluster_of, healthy_nodes

from orchestrator.topology.machines import State, grown, state_of, throttled


def states(**changed: HealthyNode) -> dict[str, State]:
    cluster = cluster_of({**healthy_nodes(2), **changed})
    return {name: state_of(snapshot, cluster.topologies[name]) for name, snapshot in cluster.snapshots.items()}


def test_a_throttled_gpu_is_named_with_clock_and_heat() -> None:
    node = healthy_nodes(2)["node1"]
    node.gpus[3] |= {
        "clocks_event_reasons": 0x48, "sm_clock_mhz": 405, "sm_clock_max_mhz": 2520, "temperature_c": 94
    }  # fmt: skip
    (words,) = throttled(states(node1=node))
    assert words == "node1: GPU 3 is throttled at 405 of 2520 MHz, 94 C: hardware slowdown, hardware thermal"
    assert list(throttled(states())) == []


def test_only_counters_that_grew_are_named() -> None:
    before = states()
    (name,) = [name for name in before["node0"]["errors"] if name.startswith("mlx5_0:1 counters/symbol_error")]
    after = {**before, "node0": {**before["node0"], "errors": {**before["node0"]["errors"], name: 7}}}
    assert list(grown(before, after)) == [f"node0: {name} grew by 7 during the run"]
    assert list(grown(before, before)) == []
    assert list(grown({}, after)) == [], "what was not read before is no growth"


def test_what_nvml_does_not_tell_is_left_out() -> None:
    node = healthy_nodes(1)["node0"]
    node.gpus[0] |= {"clocks_event_reasons": None, "sm_clock_mhz": "unknown", "temperature_c": None, "power_mw": None}
    gpu = states(node0=node)["node0"]["gpus"]["0"]
    assert not {"reasons", "clock_mhz", "temperature_c"} & gpu.keys()
