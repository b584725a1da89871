"""docs/monitoring.md lists every metric and every alert."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.monitoring.alerts import ALERTS
from orchestrator.monitoring.catalogue import CATALOGUE

PAGE = Path(__file__).parents[3] / "docs" / "monitoring.md"


def metrics_table() -> str:
    rows = [
        f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.help.replace('|', '/')} |" for metric in CATALOGUE
    ]
    return "\n".join(["| metric | labels | meaning |", "|---|---|---|", *rows])


def alerts_table() -> str:
    rows = [
        f"| {alert.name} | {alert.severity} | {alert.wait or 'at once'} | "
        f"{alert.finding or f'`{alert.explain}`'.replace('{{ $labels.gang }}', 'GANG')} | {alert.description} |"
        for alert in ALERTS
    ]
    text = "\n".join(["| alert | severity | after | explained by | meaning |", "|---|---|---|---|---|", *rows])
    return re.sub(r"\{\{ *\$labels\.(\w+) *\}\}", lambda found: found[1].upper(), text)


@pytest.mark.parametrize(("name", "table"), [("metrics", metrics_table()), ("alerts", alerts_table())])
def test_the_page_has_the_table(name: str, table: str) -> None:
    begin, end = f"<!-- {name}: UPDATE_GOLDEN=1 writes them -->", f"<!-- end of {name} -->"
    page = PAGE.read_text()
    found = re.search(f"{re.escape(begin)}(.*?){re.escape(end)}", page, re.DOTALL)
    assert found is not None
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page[: found.start(1)] + f"\n{table}\n" + page[found.end(1) :])
        return
    assert found.group(1).strip() == table, "UPDATE_GOLDEN=1 writes the page anew"
