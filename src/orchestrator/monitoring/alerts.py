"""What an operator is woken for. Each alert has a runbook text, and names the finding or the command that explains it.

None waits with `for` where minutes of a dead gang are what it is about; conditions that come and go wait.
"""

from __future__ import annotations

from dataclasses import dataclass

CRITICAL, WARNING = "critical", "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alerting rule. finding: id for `doctor --explain`, '' where another command explains it; explain: that one.

    summary and description are templates of Prometheus' own kind.
    """

    name: str
    severity: str
    expr: str
    summary: str
    description: str
    runbook: str
    finding: str = ""
    explain: str = ""
    wait: str = ""


ALERTS: tuple[Alert, ...] = (
    Alert(
        name="L40sGangFailed",
        severity=CRITICAL,
        expr="l40s_gang_failed == 1",
        summary="{{ $labels.gang }} failed on {{ $labels.node }}: {{ $labels.cause }}",
        description="A rank, an agent or a node of the gang has died, so all its ranks were stopped. No requests are "
        "answered by this gang. First: TP{{ $labels.tp_rank }} on {{ $labels.node }}.",
        runbook="Read the cause and its fix: l40s-deploy why {{ $labels.gang }}. Then start the gang again: "
        "l40s-deploy restart {{ $labels.gang }}. A guard does this automatically.",
        explain="l40s-deploy doctor --explain {{ $labels.cause }}",
    ),
    Alert(
        name="L40sGangRestarted",
        severity=WARNING,
        expr="time() - l40s_gang_last_failure_timestamp_seconds < 600 unless on (gang) l40s_gang_failed == 1",
        summary="{{ $labels.gang }} failed within the last 10 minutes: {{ $labels.cause }}",
        description="The gang failed on {{ $labels.node }}, and a guard or an operator has restarted it since.",
        runbook="Read why: l40s-deploy why {{ $labels.gang }}. If the same node or rank fails again, take the "
        "node out of service and test its hardware.",
        explain="l40s-deploy why {{ $labels.gang }}",
    ),
    Alert(
        name="L40sGangDegraded",
        severity=CRITICAL,
        expr='l40s_gang_degraded{reason!="router"} == 1',
        summary="{{ $labels.gang }} is degraded: {{ $labels.reason }}",
        description="The gang runs, and is silent, slow, hung, short of a rank, or off its RDMA devices.",
        runbook="See which node and rank: l40s-deploy status {{ $labels.gang }}. For `rails`: l40s-deploy "
        "doctor. For `hung`: the status names the rank that all others wait for.",
        explain="l40s-deploy status {{ $labels.gang }}",
        wait="15s",
    ),
    Alert(
        name="L40sStartLate",
        severity=WARNING,
        expr="l40s_gang_start_late == 1",
        summary="{{ $labels.gang }} takes longer to start than a healthy start may",
        description="A phase of the start is late; see l40s_node_phase for the node that is behind.",
        runbook="l40s-deploy status {{ $labels.gang }} names the node that is behind; l40s-deploy logs shows "
        "what it does.",
        explain="l40s-deploy status {{ $labels.gang }}",
    ),
    Alert(
        name="L40sNodeDown",
        severity=CRITICAL,
        expr="l40s_node_up == 0",
        summary="{{ $labels.node }} did not answer",
        description="The exporter could not reach the node over SSH, or its answer could not be read.",
        runbook="Check the node: ssh {{ $labels.node }} uptime. If it is down, the gang stops itself when its lease "
        "expires.",
        explain="l40s-deploy status {{ $labels.gang }}",
        wait="15s",
    ),
    Alert(
        name="L40sExporterDown",
        severity=CRITICAL,
        expr='up{job="l40s"} == 0 or absent(up{job="l40s"})',
        summary="The exporter of l40s-deploy does not answer",
        description="Metrics of gangs, GPUs and rails are out of date meanwhile; no other alert of this group fires.",
        runbook="On the machine of the exporter: systemctl status l40s-deploy-exporter, or start it: l40s-deploy "
        "exporter.",
        explain="l40s-deploy exporter --help",
        wait="15s",
    ),
    Alert(
        name="L40sCanarySlow",
        severity=WARNING,
        expr="l40s_gang_canary_duration_seconds > 15",
        summary="{{ $labels.gang }} takes {{ $value | humanizeDuration }} to generate one token",
        description="The probe of the leader's agent must wait: the engine is overloaded or slow.",
        runbook="Check the queue (sglang:num_queue_reqs), then clocks and rails on the dashboard; compare with "
        "l40s-deploy bench.",
        explain="l40s-deploy status {{ $labels.gang }}",
        wait="2m",
    ),
    Alert(
        name="L40sQueueLong",
        severity=WARNING,
        expr='max by (gang) ({__name__=~"sglang[:_]num_queue_reqs"}) > 64',
        summary="{{ $value }} requests wait at {{ $labels.gang }}",
        description="More requests arrive than the gang answers.",
        runbook="Add a gang behind the router, or limit the clients. l40s-deploy bench --sweep shows what this gang "
        "can do.",
        explain="l40s-deploy status {{ $labels.gang }}",
        wait="10m",
    ),
    Alert(
        name="L40sGpuLost",
        severity=CRITICAL,
        expr="l40s_gpu_up == 0 or l40s_node_nvml_up == 0",
        summary="NVML can't read a GPU of {{ $labels.node }}",
        description="The GPU fell off the bus, or the driver does not answer.",
        runbook="l40s-deploy doctor names the GPU; nvidia-smi -q on the node; reboot the node if the GPU is lost.",
        finding="GPU-HEALTH",
    ),
    Alert(
        name="L40sGpuHot",
        severity=WARNING,
        expr="l40s_gpu_temperature_celsius > 85",
        summary="GPU {{ $labels.gpu }} of {{ $labels.node }} has {{ $value }} degrees Celsius",
        description="An L40S lowers its clock from about 88 degrees Celsius on; all ranks wait for the slowest.",
        runbook="Check the fans, the air flow and the inlet temperature of the machine.",
        finding="GPU-HEALTH",
        wait="2m",
    ),
    Alert(
        name="L40sGpuThrottled",
        severity=WARNING,
        expr='l40s_gpu_clock_limited{reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"} == 1',
        summary="GPU {{ $labels.gpu }} of {{ $labels.node }} is slowed down: {{ $labels.reason }}",
        description="The clock is limited by heat or by the power supply. One slow GPU slows all ranks.",
        runbook="Check cooling and power of the machine; nvidia-smi -q -d PERFORMANCE on the node.",
        finding="GPU-HEALTH",
        wait="1m",
    ),
    Alert(
        name="L40sGpuEcc",
        severity=CRITICAL,
        expr='increase(l40s_gpu_ecc_errors_total{type="uncorrected"}[10m]) > 0',
        summary="GPU {{ $labels.gpu }} of {{ $labels.node }} has memory errors that can't be corrected",
        description="Results of the affected process are lost; the driver kills it.",
        runbook="Reset the GPU or reboot the node, then run dcgmi diag -r 3; replace the GPU if the errors return.",
        finding="GPU-ECC",
    ),
    Alert(
        name="L40sGpuXid",
        severity=WARNING,
        expr="l40s_gpu_xid_errors_total - (l40s_gpu_xid_errors_total offset 10m or l40s_gpu_xid_errors_total * 0) > 0",
        summary="Xid {{ $labels.xid }} of the GPU at {{ $labels.pci_bus_id }} on {{ $labels.node }}",
        description="The driver reported an error of the GPU within the last 10 minutes.",
        runbook="Look the number up in NVIDIA's list of Xid errors; l40s-deploy doctor explains the serious ones.",
        finding="GPU-XID",
    ),
    Alert(
        name="L40sRailDown",
        severity=CRITICAL,
        expr="l40s_rail_up == 0 and on (gang, node, device, port) max_over_time(l40s_rail_up[1d]) == 1",
        summary="RDMA port {{ $labels.device }}/{{ $labels.port }} of {{ $labels.node }} went down",
        description="The port was active within the last day and is now down.",
        runbook="Check the cable and the switch port, then l40s-deploy doctor.",
        finding="RDMA-PORT-DOWN",
    ),
    Alert(
        name="L40sRailErrors",
        severity=WARNING,
        expr="sum by (gang, node, device, port) (rate(l40s_rail_errors_total[5m])) > 1",
        summary="{{ $labels.device }} of {{ $labels.node }} counts {{ $value | humanize }} errors a second",
        description="Packets are lost or repeated; RoCE sends entire windows again.",
        runbook="Check flow control (PFC, ECN) on the switch and the card; a rising symbol_error means a bad cable.",
        finding="RDMA-LOSSES",
        wait="1m",
    ),
    Alert(
        name="L40sRailCongested",
        severity=WARNING,
        expr="sum by (gang, node, device, port) (rate(l40s_rail_congestion_marks_total[5m])) > 100",
        summary="{{ $labels.device }} of {{ $labels.node }} reports congestion: {{ $value | humanize }} marks a second",
        description="A switch's queue fills up, and the senders slow down.",
        runbook="Check the switch for a slower link, two rails over one uplink, or other traffic in this priority.",
        finding="RDMA-CONGESTED",
        wait="5m",
    ),
    Alert(
        name="L40sRouterDown",
        severity=CRITICAL,
        expr="l40s_router_up == 0 or sum(l40s_router_worker_healthy) == 0",
        summary="The router has no gang to send requests to, or does not run",
        description="Clients get HTTP 503 or no connection.",
        runbook="l40s-deploy router status, then l40s-deploy router up; serving gangs are added.",
        explain="l40s-deploy router status",
        wait="30s",
    ),
    Alert(
        name="L40sFinding",
        severity=WARNING,
        expr='l40s_finding{severity=~"stop|slow"} > 0',
        summary="doctor found {{ $labels.id }} {{ with $labels.node }}on {{ . }}{{ end }}",
        description="A finding that stops a start or costs speed; see its cost and fix.",
        runbook="l40s-deploy doctor; accept it with l40s_accept in the inventory if it is intended.",
        explain="l40s-deploy doctor --explain {{ $labels.id }}",
    ),
    Alert(
        name="L40sLockOld",
        severity=WARNING,
        expr="l40s_lock_age_seconds > 60",
        summary="The lock of {{ $labels.gang }} was not renewed for {{ $value | humanizeDuration }}",
        description="The command that holds it is dead or cut off.",
        runbook="l40s-deploy lock show; the next command takes over a dead holder's lock automatically.",
        explain="l40s-deploy lock show {{ $labels.gang }}",
        wait="1m",
    ),
)
