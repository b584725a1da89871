"""`export prometheus`: configuration, rules and dashboard for a monitoring system, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.loading.resources import template
from orchestrator.loading.yaml_fields import yaml_text
from orchestrator.model.inventory import Inventory
from orchestrator.records.documents import write_whole

RULES = "l40s.rules.yml"
INTERVAL_S = 5
"""Between scrapes, and between evaluations: a death reaches its receiver within both, and the delivery."""
_WRITTEN = "# Written by `l40s-deploy export prometheus`; write it again after a change of the inventory."


def prometheus_files(
    inventory: Inventory,
    *,
    exporter: str,
    alertmanagers: Sequence[str] = (),
    price_per_kwh: float = 0.0,
    node_watts: float = 0.0,
    receiver: str = "",
) -> dict[str, str]:
    """Text by file name: a complete prometheus.yml, rules, delivery and dashboard.

    exporter, alertmanagers: HOST:PORT as Prometheus reaches them; price_per_kwh: 0 records no cost; node_watts: what
    each node draws beside its GPUs; receiver: the address that Alertmanager calls, '' for none. The engine answers
    /metrics on every node of a gang, so all of them are targets.
    """
    config: dict[str, Any] = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [RULES],
        "scrape_configs": [
            {"job_name": "l40s", "static_configs": [{"targets": [exporter]}]},
            {"job_name": "sglang", "static_configs": _engines(inventory)},
        ],
    }
    if alertmanagers:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]}
    rules = template(f"monitoring/{RULES}").replace("PRICE_PER_KWH", f"{price_per_kwh:g}")
    hooks = json.dumps([{"url": receiver, "send_resolved": True}])
    return {
        "prometheus.yml": yaml_text(config, "Prometheus: targets and intervals."),
        RULES: rules.replace("NODE_WATTS", f"{node_watts:g}"),
        "alertmanager.yml": template("monitoring/alertmanager.yml")
        + (f"    webhook_configs: {hooks}\n" if receiver else ""),
        "l40s-dashboard.json": template("monitoring/l40s-dashboard.json"),
    }


def _engines(inventory: Inventory) -> list[dict[str, Any]]:
    return [
        {
            "targets": [node.http_place(node.address or node.reach.host) for node in gang.nodes],
            "labels": {"gang": gang.name},
        }
        for gang in inventory.gangs
    ]


def write_files(files: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """Write what prometheus_files gave. Raises InputError where the folder can't be made or written."""
    for name, text in files.items():
        write_whole(folder / name, text if name.endswith(".json") else f"{_WRITTEN}\n{text}", folders=0o777)
    return tuple(folder / name for name in files)
