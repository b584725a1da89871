"""Files and answers of release 0.1.0: staged requests, reports, the node application (tests/recorded/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "recorded" / "release-0.1.0"
APPLICATION = FOLDER / "node-application.pyz"
NODES = ("node0", "node1")


def answers() -> dict[str, dict[str, Any]]:
    """What the verb `report` answered, by node and state: `node0 ready`."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / "reports.json").read_text())
    return found


def staged() -> dict[str, dict[str, Any]]:
    """What the verb `staged` answered on a gang that was ready, by node."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / "staged.json").read_text())
    return found


def histories() -> dict[str, dict[str, Any]]:
    """What the verb `history` answered after a rank was killed, by node."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / "history.json").read_text())
    return found


def report(node: str, moment: str) -> dict[str, Any]:
    """The gang's report on a node."""
    (raw,) = answers()[f"{node} {moment}"]["reports"]
    return dict(raw)
