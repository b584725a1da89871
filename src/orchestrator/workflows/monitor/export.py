"""`export prometheus`: configuration, rules and dashboard for a monitoring system, as files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.loading.yaml_text import yaml_text
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.dashboard import dashboard
from orchestrator.monitoring.delivery import delivery
from orchestrator.monitoring.rules import Prices, rule_file
from orchestrator.monitoring.targets import RULES, Targets, scrape_config
from orchestrator.workflows.files import write_whole

_WRITTEN = "Written by `l40s-deploy export prometheus`; write it again after a change of the inventory."


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusOrder:
    """receiver: the address that Alertmanager calls, '' for none."""

    targets: Targets
    prices: Prices
    receiver: str = ""


def prometheus_files(inventory: Inventory, order: PrometheusOrder) -> dict[str, str]:
    """Text by file name."""

    def written(document: Any, what: str) -> str:
        return yaml_text(document, what, _WRITTEN)

    return {
        "prometheus.yml": written(scrape_config(inventory, order.targets), "Prometheus: targets and intervals."),
        RULES: written(rule_file(order.prices), "Prometheus: recorded series and alerts."),
        "alertmanager.yml": written(delivery(order.receiver), "Alertmanager: who is notified, and how soon."),
        "l40s-dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
    }


def export_prometheus(inventory: Inventory, order: PrometheusOrder, folder: Path) -> tuple[Path, ...]:
    """Write them. Raises InputError where the folder can't be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise InputError(
            f"can't be made: {failure.strerror or failure}", where=str(folder), fix="choose a writable directory"
        ) from None
    written = []
    for name, text in prometheus_files(inventory, order).items():
        write_whole(folder / name, text)
        written.append(folder / name)
    return tuple(written)
