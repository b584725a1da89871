"""docs/proven.yml: what was run where. README's table is made of it, and a run writes its row when it has ended.

python -m tests.support.proven FILE     # take in what `l40s-deploy certify` wrote on the reference cluster
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator.loading.profiles import load_profile
from orchestrator.support.steps.certify import digest

FILE = Path(__file__).parents[2] / "docs" / "proven.yml"
CLASSES = ("recorded machines", "emulated", "CPU engine", "GPUs over TCP", "slice on GPUs", "soft-RoCE", "L40S")
"""From the weakest to the strongest."""


def claims() -> dict[str, dict[str, Any]]:
    """By id."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text("utf-8"))
    return found


def record(claim: str, figures: str, how: str = "", date: datetime.date | None = None) -> None:
    """Write down figures of a claim that the file has, and how they came. date: None for today. Raises KeyError for
    another claim."""
    text = FILE.read_text("utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    rows = claims()
    when = date or datetime.date.today()
    rows[claim] |= {"date": when, "figures": figures, "how": how or rows[claim]["how"]}
    FILE.write_text(head + yaml.safe_dump(rows, sort_keys=False, allow_unicode=True, width=120), "utf-8")


def take(certificate: Mapping[str, Any]) -> None:
    """Write the row `l40s` by what `certify` wrote. Raises ValueError with every reason why it does not prove it."""
    rest = {key: value for key, value in certificate.items() if key != "digest"}
    hardware, steps = certificate.get("hardware") or {}, {one["name"]: one for one in certificate["steps"]}
    wrong = {
        "it was changed since": digest(rest) != certificate["digest"]
        or any(digest(one["result"]) != one["digest"] for one in steps.values()),
        f"it ended {certificate['verdict']}": not certificate["complete"] or certificate["verdict"] != "ok",
        "nobody knows that its engine was real": certificate["stand_in"] is not False,
        "traffic was not RDMA": certificate.get("transport") != "rdma",
        f"its machines are others: {hardware}": (hardware.get("nodes"), hardware.get("gpus"))
        != (4, {"NVIDIA L40S": 32}),
    }
    if reasons := [why for why, it_is in wrong.items() if it_is]:
        raise ValueError("; ".join(reasons))
    shape = load_profile(certificate["model"]).dimensions
    if (shape.hidden_size, shape.num_hidden_layers) != (7168, 61):
        raise ValueError(f"{certificate['model']} is no model of 671B")
    speeds = {row["requests"]: row["tok_s"] for row in steps["bench"]["result"]["decode"] if "client" in row["source"]}
    record(
        "l40s",
        f"{certificate['model']} ready in {steps['up']['result']['seconds']:.0f} s, "
        + ", ".join(f"{speed:.1f}" for speed in speeds.values())
        + f" tokens/s at {', '.join(map(str, speeds))}",
        f"l40s-deploy certify, {certificate['digest'][:12]}",
        datetime.date.fromisoformat(certificate["at"][:10]),
    )


def table(rows: Mapping[str, Mapping[str, Any]], titles: tuple[str, str, str]) -> str:
    """As Markdown. titles: of the columns claim, class and result"""
    lines = ["| " + " | ".join(titles) + " |", "|---|---|---|"]
    for row in rows.values():
        result = f"{row['figures']}, {row['date']}" if row["date"] else "none yet"
        lines.append(f"| {row['claim']} | {row['class']} | {result} |")
    return "\n".join(lines)


if __name__ == "__main__":
    take(json.loads(Path(sys.argv[1]).read_text("utf-8")))
