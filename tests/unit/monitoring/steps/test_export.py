"""Rules and dashboard use existing metrics, and link to an explanation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.prometheus import checked

from orchestrator.doctor.rules.support.registry import all_rules
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.catalogue import CATALOGUE
from orchestrator.monitoring.steps.export import prometheus_files

EMPTY = Inventory(path="", gangs=())
ORDER: dict[str, Any] = {"exporter": "127.0.0.1:9940", "receiver": "http://receiver"}


def written() -> dict[str, Any]:
    """Every file's document."""
    files = prometheus_files(EMPTY, **ORDER)
    return {name: yaml.safe_load(text) for name, text in files.items()}


WRITTEN = written()
RECORDED, ALERTS = (group["rules"] for group in WRITTEN["l40s.rules.yml"]["groups"])
DASHBOARD = WRITTEN["l40s-dashboard.json"]


def own_names(expr: str) -> set[str]:
    """Our metric names in an expression, recorded ones with their level."""
    return set(re.findall(r"\b(?:[a-z]+:)?l40s_[a-z_]+(?::[a-z0-9]+)?", re.sub(r'"[^"]*"', "", expr)))


def expressions() -> list[str]:
    targets = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [rule["expr"] for rule in (*RECORDED, *ALERTS, *targets)]


@pytest.mark.parametrize("expr", expressions())
def test_every_name_of_ours_is_one_that_the_exporter_or_a_rule_has(expr: str) -> None:
    assert own_names(expr) <= CATALOGUE.keys() | {rule["record"] for rule in RECORDED}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_says_what_to_do_and_what_explains_it(alert: dict[str, Any]) -> None:
    told = alert["annotations"]
    assert told["runbook"] and told["description"] and told["summary"]
    assert told["explain"].startswith("l40s-deploy ")
    _, explains, finding = told["explain"].partition("doctor --explain ")
    assert not explains or "$labels" in finding or finding in {rule.id for rule in all_rules()}
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_a_failed_gang_is_told_without_any_waiting() -> None:
    (failed,) = [alert for alert in ALERTS if alert["alert"] == "L40sGangFailed"]
    assert failed["labels"]["severity"] == "critical" and "for" not in failed
    delivery = WRITTEN["alertmanager.yml"]
    (critical,) = delivery["route"]["routes"]
    assert critical["matchers"] == ['severity="critical"'] and critical["group_wait"] == "0s"
    assert delivery["receivers"][0]["webhook_configs"] == [{"url": "http://receiver", "send_resolved": True}]


@pytest.mark.parametrize(("price", "cost"), [(0.28, 0.778), (0.0, None)])
def test_promtool_records_what_a_million_tokens_take_and_cost(price: float, cost: float | None, tmp_path: Path) -> None:
    """Two GPUs of 300 W and a node of 400 W make 100 tokens/s, which two ranks report: 10 J per token. Without a
    price there is no cost, not one of 0."""
    rules = tmp_path / "l40s.rules.yml"
    rules.write_text(prometheus_files(EMPTY, **ORDER, price_per_kwh=price, node_watts=400.0)[rules.name])
    power = [f'l40s_gpu_power_watts{{gang="gang0", gpu="{gpu}"}}' for gpu in range(2)]
    tokens = [f'sglang:generation_tokens_total{{gang="gang0", tp_rank="{rank}"}}' for rank in range(2)]
    series = {
        **dict.fromkeys(power, "300x40"),
        **dict.fromkeys(tokens, "0+1500x40"),
        'l40s_node_up{gang="gang0", node="node0"}': "1x40",
        'l40s_gang_failed{gang="gang0", node="node0", tp_rank="3", cause="RANK-DIED"}': "0x30 1x10",
    }
    wanted = {
        "gang:l40s_output_tokens:rate5m": ('{gang="gang0"}', 100.0),
        "gang:l40s_kwh_per_million_tokens": ('{gang="gang0"}', 2.778),
        "gang:l40s_energy_cost_per_million_tokens": ('{gang="gang0"}', cost),
    }
    test = {
        "rule_files": [rules.name],
        "evaluation_interval": "5s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {"expr": f"round({name}, 0.001)", "eval_time": "7m",
                     "exp_samples": [{"labels": labels, "value": value}] if value is not None else []}
                    for name, (labels, value) in wanted.items()
                ],
                "alert_rule_test": [
                    {"alertname": "L40sGangFailed", "eval_time": "7m25s", "exp_alerts": []},
                    {"alertname": "L40sGangFailed", "eval_time": "8m", "exp_alerts": [fired("RANK-DIED")]},
                ],
            }
        ],
    }  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    checked("promtool", "test", "rules", str(tmp_path / "test.yml"))


def fired(cause: str) -> dict[str, Any]:
    (alert,) = [alert for alert in ALERTS if alert["alert"] == "L40sGangFailed"]
    labels = {"gang": "gang0", "node": "node0", "tp_rank": "3", "cause": cause}

    def filled(text: str) -> str:
        for name, value in labels.items():
            text = text.replace("{{ $labels." + name + " }}", value)
        return text

    annotations = {name: filled(text) for name, text in alert["annotations"].items()}
    return {"exp_labels": {**labels, "severity": "critical"}, "exp_annotations": annotations}


def test_the_dashboard_s_panels_lie_side_by_side() -> None:
    panels = DASHBOARD["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ["Serving", "Ranks", "GPUs", "Rails"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
