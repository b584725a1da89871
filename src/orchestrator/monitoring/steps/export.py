"""`export prometheus`: configuration, rules and dashboard for a monitoring system, as files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from orchestrator.loading.resources import template
from orchestrator.loading.yaml_fields import yaml_text
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.targets import RULES, Targets, scrape_config
from orchestrator.records.documents import write_whole

_WRITTEN = "# Written by `l40s-deploy export prometheus`; write it again after a change of the inventory."


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOrder:
    """price_per_kwh: 0 records no cost; node_watts: what each node draws beside its GPUs; receiver: the address that
    Alertmanager calls, '' for none."""

    targets: Targets
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
        "prometheus.yml": yaml_text(scrape_config(inventory, order.targets), "Prometheus: targets and intervals."),
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
