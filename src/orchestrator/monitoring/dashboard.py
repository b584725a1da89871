"""Grafana's dashboard as JSON: serving, ranks, GPUs, rails.

The schema is that of Grafana 9 and later (schemaVersion 36); newer releases bring it up to theirs when they load it.
Grafana's own library for dashboards as code was left out: docs/decisions/0008-dashboard-json.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 36
WIDTH = 24
HEIGHT = 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF = 'gang=~"$gang"'
_AT = 'gang=~"$gang", node=~"$node"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """queries: legend template by PromQL expression. kind: Grafana's panel type; mappings: words for values."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    mappings: Mapping[str, tuple[str, str]] = field(default_factory=dict)


_ALIVE = {"0": ("dead", "red"), "1": ("alive", "green")}
_UP = {"0": ("down", "red"), "1": ("up", "green")}

ROWS: Mapping[str, Sequence[Panel]] = {
    "Serving": (
        Panel(
            title="State",
            kind="state-timeline",
            queries={f"l40s_gang_state{{{_OF}}} == 1": "{{gang}}: {{state}}"},
            width=12,
        ),
        Panel(
            title="Failed and degraded",
            kind="state-timeline",
            queries={
                f"l40s_gang_failed{{{_OF}}}": "{{gang}} failed: {{cause}} on {{node}} TP{{tp_rank}}",
                f"l40s_gang_degraded{{{_OF}}}": "{{gang}} degraded: {{reason}}",
            },
            width=12,
        ),
        Panel(title="Output tokens", unit="cps", queries={f"gang:l40s_output_tokens:rate5m{{{_OF}}}": "{{gang}}"}),
        Panel(
            title="Requests",
            queries={
                f'max by (gang) ({{__name__=~"sglang[:_]num_running_reqs", {_OF}}})': "{{gang}} running",
                f'max by (gang) ({{__name__=~"sglang[:_]num_queue_reqs", {_OF}}})': "{{gang}} queued",
            },
        ),
        Panel(
            title="Time to the first token (95 %)",
            unit="s",
            queries={
                "histogram_quantile(0.95, sum by (gang, le)"
                f' (rate({{__name__=~"sglang[:_]time_to_first_token_seconds_bucket", {_OF}}}[5m])))': "{{gang}}"
            },
        ),
        Panel(title="Canary", unit="s", queries={f"l40s_gang_canary_duration_seconds{{{_OF}}}": "{{gang}}"}),
        Panel(
            title="Energy per million tokens",
            unit="kwatth",
            queries={f"gang:l40s_kwh_per_million_tokens{{{_OF}}}": "{{gang}}"},
        ),
        Panel(
            title="Restarts by cause",
            queries={f"l40s_gang_restarts_total{{{_OF}}}": "{{gang}} {{cause}}"},
        ),
    ),
    "Ranks": (
        Panel(
            title="Ranks",
            kind="state-timeline",
            queries={f"l40s_rank_alive{{{_AT}}}": "{{node}} TP{{tp_rank}}"},
            mappings=_ALIVE,
            width=12,
        ),
        Panel(
            title="Memory held by ranks",
            unit="bytes",
            queries={f"l40s_rank_gpu_memory_bytes{{{_AT}}}": "{{node}} TP{{tp_rank}}"},
            width=12,
        ),
        Panel(
            title="Nodes",
            kind="state-timeline",
            queries={f"l40s_node_up{{{_AT}}}": "{{node}}"},
            mappings=_UP,
            width=12,
        ),
        Panel(
            title="Steps of the phase (shards, graphs)",
            queries={f"l40s_node_phase_step{{{_AT}}}": "{{node}}"},
            width=12,
        ),
    ),
    "GPUs": (
        Panel(
            title="Temperature",
            unit="celsius",
            queries={f"l40s_gpu_temperature_celsius{{{_AT}}}": "{{node}} GPU {{gpu}}"},
        ),
        Panel(title="Power", unit="watt", queries={f"l40s_gpu_power_watts{{{_AT}}}": "{{node}} GPU {{gpu}}"}),
        Panel(title="SM clock", unit="hertz", queries={f"l40s_gpu_sm_clock_hertz{{{_AT}}}": "{{node}} GPU {{gpu}}"}),
        Panel(
            title="Utilization",
            unit="percentunit",
            queries={f"l40s_gpu_utilization_ratio{{{_AT}}}": "{{node}} GPU {{gpu}}"},
        ),
        Panel(
            title="Reasons that limit clocks",
            queries={f'l40s_gpu_clock_limited{{{_AT}, reason!="idle"}} == 1': "{{node}} GPU {{gpu}}: {{reason}}"},
        ),
        Panel(
            title="ECC and Xid",
            queries={
                f'l40s_gpu_ecc_errors_total{{{_AT}, type="uncorrected"}}': "{{node}} GPU {{gpu}} ECC",
                f"l40s_gpu_xid_errors_total{{{_AT}}}": "{{node}} {{pci_bus_id}} Xid {{xid}}",
            },
        ),
    ),
    "Rails": (
        Panel(
            title="Received",
            unit="Bps",
            queries={f"rail:l40s_received_bytes:rate1m{{{_AT}}}": "{{node}} {{device}}"},
        ),
        Panel(
            title="Sent",
            unit="Bps",
            queries={f"rail:l40s_transmitted_bytes:rate1m{{{_AT}}}": "{{node}} {{device}}"},
        ),
        Panel(
            title="Ports",
            kind="state-timeline",
            queries={f"l40s_rail_up{{{_AT}}}": "{{node}} {{device}}/{{port}}"},
            mappings=_UP,
        ),
        Panel(
            title="Errors a second",
            queries={f"rate(l40s_rail_errors_total{{{_AT}}}[5m]) > 0": "{{node}} {{device}} {{counter}}"},
        ),
        Panel(
            title="Discards a second",
            queries={f"rate(l40s_rail_discards_total{{{_AT}}}[5m]) > 0": "{{node}} {{device}} {{counter}}"},
        ),
        Panel(
            title="Congestion marks a second",
            queries={f"rate(l40s_rail_congestion_marks_total{{{_AT}}}[5m]) > 0": "{{node}} {{device}} {{counter}}"},
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports, or reads from a provisioned folder."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(_row(len(panels) + 1, title, top))
        top += 1
        left = 0
        for panel in row:
            if left + panel.width > WIDTH:
                left, top = 0, top + HEIGHT
            panels.append(_panel(len(panels) + 1, panel, left, top))
            left += panel.width
        top += HEIGHT
    return {
        "uid": "l40s-deploy",
        "title": "l40s-deploy",
        "tags": ["l40s-deploy"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _variable("gang", "l40s_gang_info"), _variable("node", "l40s_node_up")]},
        "annotations": {"list": [_failures()]},
        "panels": panels,
    }


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
    }


def _panel(number: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    values = {
        value: {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(panel.mappings.items())
    }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": {"h": HEIGHT, "w": panel.width, "x": left, "y": top},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "mappings": [{"type": "value", "options": values}] if values else [],
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
            for place, (expr, legend) in enumerate(panel.queries.items())
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _failures() -> dict[str, Any]:
    """A mark on every panel when a gang failed."""
    return {
        "name": "Failures",
        "datasource": DATASOURCE,
        "enable": True,
        "expr": "changes(l40s_gang_last_failure_timestamp_seconds[1m]) > 0 or l40s_gang_failed == 1",
        "iconColor": "red",
        "titleFormat": "{{gang}}: {{cause}}",
        "textFormat": "{{node}} TP{{tp_rank}}",
    }
