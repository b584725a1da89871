"""Prometheus' rule file: recorded series and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.monitoring.alerts import ALERTS, Alert

JOULES_PER_KWH = 3.6e6
PER_TOKENS = 1e6
TOKENS = '{__name__=~"sglang[:_]generation_tokens_total"}'
"""SGLang writes sglang:generation_tokens_total. With --enable-metrics-for-all-schedulers every TP rank tells the same
number, hence `max` wherever it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a kWh costs, in which currency, and what each node draws beside its GPUs, in watts."""

    per_kwh: float = 0.0
    currency: str = "EUR"
    node_watts: float = 0.0


def rule_file(prices: Prices) -> dict[str, Any]:
    """The document of l40s.rules.yml."""
    return {
        "groups": [
            {"name": "l40s-recorded", "rules": _recorded(prices)},
            {"name": "l40s-alerts", "rules": [_alert(alert) for alert in ALERTS]},
        ]
    }


def _recorded(prices: Prices) -> list[dict[str, Any]]:
    power_by_speed = "gang:l40s_power_watts:sum / (gang:l40s_output_tokens:rate5m > 0)"
    rules: list[dict[str, Any]] = [
        {
            "record": "gang:l40s_output_tokens:rate5m",
            "expr": f"max by (gang) (rate({TOKENS}[5m]))",
        },
        {
            "record": "gang:l40s_power_watts:sum",
            "expr": "sum by (gang) (avg_over_time(l40s_gpu_power_watts[5m]))"
            f" + {prices.node_watts:g} * count by (gang) (l40s_node_up)",
        },
        {
            "record": "gang:l40s_kwh_per_million_tokens",
            "expr": f"{power_by_speed} * {PER_TOKENS / JOULES_PER_KWH:.9g}",
        },
        {
            "record": "gang:l40s_energy_cost_per_million_tokens",
            "expr": f"gang:l40s_kwh_per_million_tokens * {prices.per_kwh:g}",
            "labels": {"currency": prices.currency},
        },
        {
            "record": "rail:l40s_received_bytes:rate1m",
            "expr": "sum by (gang, node, device, port) (rate(l40s_rail_received_bytes_total[1m]))",
        },
        {
            "record": "rail:l40s_transmitted_bytes:rate1m",
            "expr": "sum by (gang, node, device, port) (rate(l40s_rail_transmitted_bytes_total[1m]))",
        },
    ]
    return rules if prices.per_kwh else [rule for rule in rules if "cost" not in rule["record"]]


def _alert(alert: Alert) -> dict[str, Any]:
    explained = f"l40s-deploy doctor --explain {alert.finding}" if alert.finding else alert.explain
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.wait} if alert.wait else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook": alert.runbook,
            "explain": explained,
        },
    }
