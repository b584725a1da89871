"""What is said of texts that people posted, case by case: pasted/<case>/paste.txt, where it comes from in source.txt,
and in said.json what must be said of it. UPDATE_GOLDEN=1 rewrites said.json: read the diff as a review.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from orchestrator.doctor.commands.findings import document
from orchestrator.doctor.rules.support.registry import COSTLY, all_rules
from orchestrator.doctor.steps.doctor import Examination
from orchestrator.doctor.steps.recordings import Given, examine_given, given
from orchestrator.topology.pasted.read import read_pasted
from orchestrator.topology.paths import shape

CASES = sorted(path.parent for path in (Path(__file__).parent / "pasted").glob("*/paste.txt"))
PARTS, KEPT = 4, 0.7
"""How many parts of each are tried, and the share of lines in them."""
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_posted_text(case: Path) -> None:
    examination = examine_given(given([f"{case / 'paste.txt'}"]))
    nodes = {node["name"]: node for node in document(examination)["nodes"]}
    answers = {
        name: {
            "recognised": node.get("recognised", []),
            "shape": shape(examination.cluster.topologies[name]).words,
            "facts": node.get("facts", []),
            "findings": [
                f"{finding.severity.value} {finding.id}: {finding.title}"
                for finding in examination.findings
                if finding.node == name and finding.id != "NOT-RECORDED"
            ],
            "judged": judged(examination, name),
        }
        for name, node in nodes.items()
    }
    text = json.dumps(answers, indent=1, ensure_ascii=False) + "\n"
    wanted = case / "said.json"
    if UPDATE:
        wanted.write_text(text)
    assert text == wanted.read_text()
    assert (case / "source.txt").read_text().startswith("https://")


def judged(examination: Examination, node: str) -> list[str]:
    """Rules that had enough of this node to judge it, where not all had."""
    unknown = [finding for finding in examination.findings if (finding.node, finding.id) == (node, "NOT-RECORDED")]
    told = {"NOT-RECORDED", *(rule for finding in unknown for rule in finding.devices)}
    return sorted({rule.id for rule in all_rules()} - told) if unknown else ["every rule"]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_part_of_it_stops_or_slows_by_nothing_that_the_whole_does_not_show(case: Path) -> None:
    text, dice = (case / "paste.txt").read_text(), random.Random(case.name)
    lines, whole = text.splitlines(), costly(text)
    for _ in range(PARTS):
        part = "\n".join(line for line in lines if dice.random() < KEPT)
        assert costly(part) <= whole, part


def costly(text: str) -> set[str]:
    findings = examine_given(Given(read_pasted({"post": text}, "post"))).findings
    return {finding.id for finding in findings if finding.severity in COSTLY}


def test_there_are_cases() -> None:
    assert len(CASES) >= 30
