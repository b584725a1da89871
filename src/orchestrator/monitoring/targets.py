"""Prometheus' own configuration: which targets, how often, which rules, and who is notified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model.inventory import Inventory, NodeSpec

DEFAULT_PORT = 9940
"""Where the exporter listens, TCP; not on Prometheus' list of ports that other exporters are known by."""
RULES = "l40s.rules.yml"
EXPORTER_JOB = "l40s"
ENGINE_JOB = "sglang"
INTERVAL_S = 5
"""Between scrapes, and between evaluations: a death reaches its receiver within both, and the delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """exporter, alertmanagers: HOST:PORT as Prometheus reaches them."""

    exporter: str
    alertmanagers: Sequence[str] = ()


def scrape_config(inventory: Inventory, targets: Targets) -> dict[str, Any]:
    """A complete prometheus.yml. The engine answers /metrics on every node of a gang, so all of them are targets."""
    engines = [
        {
            "targets": [_host_port(node, node.ports.http) for node in gang.nodes],
            "labels": {"gang": gang.name},
        }
        for gang in inventory.gangs
    ]
    config: dict[str, Any] = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [RULES],
        "scrape_configs": [
            {"job_name": EXPORTER_JOB, "static_configs": [{"targets": [targets.exporter]}]},
            {"job_name": ENGINE_JOB, "static_configs": engines},
        ],
    }
    if targets.alertmanagers:
        managers = [{"static_configs": [{"targets": list(targets.alertmanagers)}]}]
        config["alerting"] = {"alertmanagers": managers}
    return config


def _host_port(node: NodeSpec, port: int) -> str:
    listens = node.http_host
    everywhere = listens in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
    host = (node.address or node.reach.host) if everywhere else listens
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
