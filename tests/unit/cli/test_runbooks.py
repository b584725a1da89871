"""docs/runbooks.md has every task, each starts with its symptom, and its stacks and models exist.

test_documented_commands.py tries the commands.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "runbooks.md").read_text()
COMMANDS = sorted(set(re.findall(r"^ +l40s-deploy (.+)$", PAGE, re.MULTILINE)))
TASKS = (
    "A node died",
    "Replace a card",
    "Upgrade the stack",
    "Move to another model",
    "Power cut",
    "Router died",
    "Power cut without an outage",
)


def test_each_task_starts_with_its_symptom() -> None:
    tasks = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert tuple(task.splitlines()[0] for task in tasks) == TASKS
    assert all(task.splitlines()[2].startswith("Symptom: ") for task in tasks)


def test_models_and_stacks_in_it_are_there() -> None:
    for option, folder in (("--stack", "stacks"), ("--model", "models")):
        values = {words[words.index(option) + 1] for words in map(shlex.split, COMMANDS) if option in words}
        assert all((ROOT / "inventory" / folder / f"{value}.yml").is_file() for value in values)


def test_the_readme_leads_there() -> None:
    assert "(docs/runbooks.md)" in (ROOT / "README.md").read_text()
