"""Metrics: every one of the exporter. templates/monitoring/ uses no other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One name. labels: in their order.

    Names and units are as Prometheus wants them: base units in the name, `_total` for what only counts up
    (prometheus.io/docs/practices/naming).
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()


_GANG = ("gang",)
_NODE = ("gang", "node")
_GPU = ("gang", "node", "gpu")
_PORT = ("gang", "node", "device", "port")
_BENCH = ("gang", "model", "stack", "load")

_METRICS = (
    Metric("l40s_exporter_info", "The exporter's version; always 1.", ("version",)),
    Metric("l40s_scrape_duration_seconds", "How long it took to ask all nodes."),
    Metric("l40s_gang_info", "What the gang runs; always 1.", ("gang", "model", "stack", "plan_id", "run_id")),
    Metric("l40s_gang_state", "1 for the state that the gang is in.", ("gang", "state")),
    Metric("l40s_gang_serving", "1 while the gang answers requests.", _GANG),
    Metric("l40s_gang_degraded", "1 while the gang is degraded, with the reason.", ("gang", "reason")),
    Metric("l40s_gang_start_late", "1 while a start takes longer than a healthy one may.", _GANG),
    Metric(
        "l40s_gang_failed",
        "1 while the gang is failed, with what failed first; cause is the id that `l40s-deploy why` names.",
        ("gang", "node", "tp_rank", "cause"),
    ),
    Metric(
        "l40s_gang_last_failure_timestamp_seconds",
        "When the newest failure of the gang was seen, also after it was restarted.",
        ("gang", "node", "tp_rank", "cause"),
    ),
    Metric(
        "l40s_gang_restarts_total",
        "Runs that followed another run, by the reason why that one ended: a cause's id, unknown, or stopped.",
        ("gang", "cause"),
    ),
    Metric("l40s_gang_start_duration_seconds", "From staging to ready, of the run that serves.", _GANG),
    Metric("l40s_gang_start_phase_duration_seconds", "How long each phase of the last start took.", ("gang", "phase")),
    Metric("l40s_gang_canary_duration_seconds", "How long the last probe that generates a token took.", _GANG),
    Metric("l40s_gang_lease_seconds", "Silence after which the gang stops itself.", _GANG),
    Metric("l40s_gang_max_queued", "Requests that may wait in the gang; absent where any number may.", _GANG),
    Metric("l40s_lock_held", "1 while a command works on the gang.", ("gang", "holder", "command")),
    Metric("l40s_lock_age_seconds", "Time since the lock's holder last renewed it.", _GANG),
    Metric("l40s_guard_up", "1 while a guard watches the gang.", _GANG),
    Metric("l40s_notifier_up", "0 where the last notification did not reach the receiver.", ("receiver",)),
    Metric("l40s_node_up", "1 if the node answered this scrape.", _NODE),
    Metric("l40s_node_state", "1 for the state of the node's part of its gang.", (*_NODE, "state")),
    Metric("l40s_node_phase", "1 for the phase that the node's engine is in.", (*_NODE, "phase")),
    Metric("l40s_node_phase_step", "Steps done in this phase, for example shards read.", _NODE),
    Metric("l40s_node_phase_steps", "Steps that this phase has.", _NODE),
    Metric("l40s_node_phase_age_seconds", "How long the node has been in this phase.", _NODE),
    Metric("l40s_node_peer_heard", "1 while the node's agent hears the agent of the peer.", (*_NODE, "peer")),
    Metric("l40s_node_left_behind_processes", "Processes of a run that did not exit.", _NODE),
    Metric("l40s_rank_alive", "1 while the TP rank's process is alive.", (*_GPU, "tp_rank")),
    Metric("l40s_rank_gpu_memory_bytes", "GPU memory of the TP rank.", (*_GPU, "tp_rank")),
    Metric("l40s_node_nvml_up", "1 if NVML answered on the node.", _NODE),
    Metric("l40s_gpu_info", "Which GPU it is; always 1.", (*_GPU, "uuid", "name", "pci_bus_id")),
    Metric("l40s_gpu_up", "0 if NVML lists the GPU but can't open it.", _GPU),
    Metric("l40s_gpu_temperature_celsius", "Temperature of the GPU.", _GPU),
    Metric("l40s_gpu_power_watts", "Power that the board draws.", _GPU),
    Metric("l40s_gpu_power_limit_watts", "Power limit in force.", _GPU),
    Metric("l40s_gpu_utilization_ratio", "Share of time in which a kernel ran.", _GPU),
    Metric("l40s_gpu_memory_used_bytes", "Memory in use.", _GPU),
    Metric("l40s_gpu_memory_bytes", "Memory that the GPU has.", _GPU),
    Metric("l40s_gpu_sm_clock_hertz", "SM clock.", _GPU),
    Metric("l40s_gpu_sm_clock_max_hertz", "Highest SM clock.", _GPU),
    Metric("l40s_gpu_clock_limited", "1 for each reason that limits the clock now.", (*_GPU, "reason")),
    Metric("l40s_gpu_ecc_errors_total", "ECC errors since the driver was loaded.", (*_GPU, "type")),
    Metric("l40s_gpu_xid_errors_total", "Xid errors since boot.", (*_NODE, "pci_bus_id", "xid")),
    Metric("l40s_rail_up", "1 while the RDMA port is active.", _PORT),
    Metric("l40s_rail_speed_bytes_per_second", "Rate of the RDMA port's link.", _PORT),
    Metric("l40s_rail_received_bytes_total", "Bytes received over the RDMA port.", _PORT),
    Metric("l40s_rail_transmitted_bytes_total", "Bytes sent over the RDMA port.", _PORT),
    Metric("l40s_rail_errors_total", "Errors and repeats, by the kernel's counter.", (*_PORT, "counter")),
    Metric("l40s_rail_discards_total", "Packets discarded, by the kernel's counter.", (*_PORT, "counter")),
    Metric(
        "l40s_rail_congestion_marks_total", "ECN marks and congestion notifications, by counter.", (*_PORT, "counter")
    ),
    Metric("l40s_router_up", "1 while the router runs and lists its workers.", ("node",)),
    Metric(
        "l40s_router_max_requests",
        "Requests that the router lets in at once; absent without a limit.",
        ("node",),
    ),
    Metric("l40s_router_worker_healthy", "1 while the router sends requests to this gang.", ("gang", "url")),
    Metric("l40s_router_worker_requests", "Requests of the router that run on this gang.", ("gang", "url")),
    Metric("l40s_finding", "Number of these findings in doctor's last check.", ("id", "severity", "node")),
    Metric("l40s_doctor_last_look_timestamp_seconds", "Time of the last check of `doctor --watch`."),
    Metric("l40s_bench_timestamp_seconds", "When the newest bench of this load began.", _BENCH),
    Metric("l40s_bench_output_tokens_per_second", "Output tokens of the newest bench.", _BENCH),
    Metric("l40s_bench_first_token_seconds", "Median time to the first token.", _BENCH),
    Metric("l40s_bench_inter_token_seconds", "Median time between tokens.", _BENCH),
    Metric("l40s_bench_accept_length", "Tokens that a step gave each request, with speculative decoding.", _BENCH),
    Metric("l40s_nettest_timestamp_seconds", "When the newest nettest ran.", _GANG),
    Metric("l40s_nettest_slow", "1 if the newest nettest found something slow.", _GANG),
    Metric("l40s_nettest_corrupt", "1 if data arrived wrong in the newest nettest.", _GANG),
    Metric(
        "l40s_nettest_all_reduce_seconds", "All-reduce of the newest nettest.", ("gang", "bytes", "between", "where")
    ),
    Metric("l40s_nettest_link_bytes_per_second", "Slower try of each link.", ("gang", "from", "to", "between")),
)
CATALOGUE = {metric.name: metric for metric in _METRICS}
