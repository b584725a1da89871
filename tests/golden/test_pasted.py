"""What is said of texts that people posted, case by case: pasted/<case>/paste.txt, where it comes from in source.txt,
and in said.json what must be said of it. UPDATE_GOLDEN=1 rewrites said.json: read the diff as a review.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.doctor.commands.findings import document
from orchestrator.doctor.steps.recordings import examine_given, given
from orchestrator.topology.paths import shape

CASES = sorted(path.parent for path in (Path(__file__).parent / "pasted").glob("*/paste.txt"))
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_posted_text(case: Path) -> None:
    examination = examine_given(given([f"{case / 'paste.txt'}"]))
    nodes = {node["name"]: node for node in document(examination)["nodes"]}
    said = {
        name: {
            "recognised": node.get("recognised", []),
            "shape": shape(examination.cluster.topologies[name]).words,
            "facts": node.get("facts", []),
            "findings": [
                f"{finding.severity.value} {finding.id}: {finding.title}"
                for finding in examination.findings
                if finding.node == name
            ],
        }
        for name, node in nodes.items()
    }
    text = json.dumps(said, indent=1, ensure_ascii=False) + "\n"
    wanted = case / "said.json"
    if UPDATE:
        wanted.write_text(text)
    assert text == wanted.read_text()
    assert (case / "source.txt").read_text().startswith("https://")


def test_there_are_cases() -> None:
    assert len(CASES) >= 30
