"""Rules and dashboard use existing metrics, and link to an explanation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.prometheus import checked

from orchestrator.monitoring.alerts import ALERTS, CRITICAL, Alert
from orchestrator.monitoring.catalogue import NAMES
from orchestrator.monitoring.dashboard import ROWS, dashboard
from orchestrator.monitoring.delivery import delivery
from orchestrator.monitoring.rules import Prices, rule_file
from orchestrator.rules.support.registry import all_rules

RECORDED = {
    rule["record"] for group in rule_file(Prices(per_kwh=1.0))["groups"] for rule in group["rules"] if "record" in rule
}


def own_names(expr: str) -> set[str]:
    """Our metric names in an expression, recorded ones with their level."""
    return set(re.findall(r"\b(?:[a-z]+:)?l40s_[a-z_]+(?::[a-z0-9]+)?", re.sub(r'"[^"]*"', "", expr)))


def expressions() -> list[str]:
    rules = [rule["expr"] for group in rule_file(Prices(per_kwh=0.3))["groups"] for rule in group["rules"]]
    return rules + [expr for row in ROWS.values() for panel in row for expr in panel.queries]


@pytest.mark.parametrize("expr", expressions())
def test_every_name_of_ours_is_one_that_the_exporter_or_a_rule_has(expr: str) -> None:
    assert own_names(expr) <= NAMES | RECORDED


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_says_what_to_do_and_what_explains_it(alert: Alert) -> None:
    assert alert.runbook and alert.description and alert.summary
    assert bool(alert.finding) != bool(alert.explain)
    assert not alert.finding or alert.finding in {loaded.rule.id for loaded in all_rules()}
    assert not alert.explain or alert.explain.startswith("l40s-deploy ")


def test_a_failed_gang_is_told_without_any_waiting() -> None:
    (failed,) = [alert for alert in ALERTS if alert.name == "L40sGangFailed"]
    assert failed.severity == CRITICAL and failed.wait == ""
    (critical,) = delivery("http://receiver")["route"]["routes"]
    assert critical["matchers"] == [f'severity="{CRITICAL}"'] and critical["group_wait"] == "0s"


def test_money_is_recorded_where_a_price_is_given() -> None:
    def recorded(prices: Prices) -> dict[str, Any]:
        return {rule["record"]: rule for rule in rule_file(prices)["groups"][0]["rules"]}

    assert "gang:l40s_energy_cost_per_million_tokens" not in recorded(Prices())
    cost = recorded(Prices(per_kwh=0.28, currency="CHF"))["gang:l40s_energy_cost_per_million_tokens"]
    assert cost["expr"].endswith("* 0.28") and cost["labels"] == {"currency": "CHF"}


def test_promtool_records_what_a_million_tokens_take_and_cost(tmp_path: Path) -> None:
    """Two GPUs of 300 W and a node of 400 W make 100 tokens/s, which two ranks report: 10 J per token."""
    rules = tmp_path / "l40s.rules.yml"
    rules.write_text(yaml.safe_dump(rule_file(Prices(per_kwh=0.28, currency="CHF", node_watts=400.0))))
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
        "gang:l40s_energy_cost_per_million_tokens": ('{currency="CHF", gang="gang0"}', 0.778),
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
                     "exp_samples": [{"labels": labels, "value": value}]}
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
    (alert,) = [alert for alert in rule_file(Prices())["groups"][1]["rules"] if alert["alert"] == "L40sGangFailed"]
    labels = {"gang": "gang0", "node": "node0", "tp_rank": "3", "cause": cause}

    def filled(text: str) -> str:
        for name, value in labels.items():
            text = text.replace("{{ $labels." + name + " }}", value)
        return text

    annotations = {name: filled(text) for name, text in alert["annotations"].items()}
    return {"exp_labels": {**labels, "severity": CRITICAL}, "exp_annotations": annotations}


def test_the_dashboard_s_panels_lie_side_by_side() -> None:
    panels = dashboard()["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ["Serving", "Ranks", "GPUs", "Rails"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
