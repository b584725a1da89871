"""docs/proven.yml: what was run where. README's table is made of it, and a run writes its row when it has ended."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / "docs" / "proven.yml"
CLASSES = ("recorded machines", "emulated", "CPU engine", "GPUs over TCP", "soft-RoCE", "L40S")
"""From the weakest to the strongest."""


def claims() -> dict[str, dict[str, Any]]:
    """By id."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text("utf-8"))
    return found


def record(claim: str, figures: str, how: str = "") -> None:
    """Write down today's figures of a claim that the file has, and how they came. Raises KeyError for another one."""
    text = FILE.read_text("utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    rows = claims()
    rows[claim] |= {"date": datetime.date.today(), "figures": figures, "how": how or rows[claim]["how"]}
    FILE.write_text(head + yaml.safe_dump(rows, sort_keys=False, allow_unicode=True, width=120), "utf-8")


def table(rows: Mapping[str, Mapping[str, Any]], titles: tuple[str, str, str]) -> str:
    """As Markdown. titles: of the columns claim, class and result"""
    lines = ["| " + " | ".join(titles) + " |", "|---|---|---|"]
    for row in rows.values():
        result = f"{row['figures']}, {row['date']}" if row["date"] else "none yet"
        lines.append(f"| {row['claim']} | {row['class']} | {result} |")
    return "\n".join(lines)
