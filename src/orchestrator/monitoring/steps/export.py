"""`export prometheus`: configuration, rules and dashboard for a monitoring system, as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.loading.resources import template
from orchestrator.loading.yaml_fields import yaml_text
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.records.documents import write_whole

RULES = "l40s.rules.yml"
INTERVAL_S = 5
"""Between scrapes, and between evaluations: a death reaches its receiver within both, and the delivery."""
_WRITTEN = "# Written by `l40s-deploy export prometheus`; write it again after a change of the inventory."


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOrder:
    """exporter, alertmanagers: HOST:PORT as Prometheus reaches them; price_per_kwh: 0 records no cost; node_watts: what
    each node draws beside its GPUs; receiver: the address that Alertmanager calls, '' for none."""

    exporter: str
    alertmanagers: Sequence[str] = ()
    price_per_kwh: float = 0.0
    node_watts: float = 0.0
    receiver: str = ""


def prometheus_files(inventory: Inventory, order: PrometheusOrder) -> dict[str, str]:
    """Text by file name."""
    rules = template(f"monitoring/{RULES}").replace("PRICE_PER_KWH", f"{order.price_per_kwh:g}")
    hook = {"url": order.receiver, "send_resolved": True}
    delivery = template("monitoring/alertmanager.yml") + (
        f"    webhook_configs: [{json.dumps(hook)}]\n" if order.receiver else ""
    )
    return {
        "prometheus.yml": yaml_text(scrape_config(inventory, order), "Prometheus: targets and intervals."),
        RULES: rules.replace("NODE_WATTS", f"{order.node_watts:g}"),
        "alertmanager.yml": delivery,
        "l40s-dashboard.json": template("monitoring/l40s-dashboard.json"),
    }


def export_prometheus(inventory: Inventory, order: PrometheusOrder, folder: Path) -> tuple[Path, ...]:
    """Write them. Raises InputError where the folder can't be made or written."""
    written = []
    for name, text in prometheus_files(inventory, order).items():
        write_whole(folder / name, text if name.endswith(".json") else f"{_WRITTEN}\n{text}", folders=0o777)
        written.append(folder / name)
    return tuple(written)


def scrape_config(inventory: Inventory, order: PrometheusOrder) -> dict[str, Any]:
    """A complete prometheus.yml. The engine answers /metrics on every node of a gang, so all of them are targets."""
    engines = [
        {"targets": [_host_port(node) for node in gang.nodes], "labels": {"gang": gang.name}}
        for gang in inventory.gangs
    ]
    config: dict[str, Any] = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [RULES],
        "scrape_configs": [
            {"job_name": "l40s", "static_configs": [{"targets": [order.exporter]}]},
            {"job_name": "sglang", "static_configs": engines},
        ],
    }
    if order.alertmanagers:
        managers = [{"static_configs": [{"targets": list(order.alertmanagers)}]}]
        config["alerting"] = {"alertmanagers": managers}
    return config


def _host_port(node: NodeSpec) -> str:
    listens, port = node.http_host, node.ports.http
    everywhere = listens in ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
    host = (node.address or node.reach.host) if everywhere else listens
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
