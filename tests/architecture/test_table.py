"""docs/architecture.md says which file to edit; those files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    line.strip("|").split("|")
    for line in (ROOT / "docs" / "architecture.md").read_text().partition("## To change something")[2].splitlines()
    if line.startswith("| ") and "---" not in line
][1:]
"""The table's rows: what, where, held by what."""


def test_it_is_short() -> None:
    assert 10 < len(ROWS) <= 20


FOLDERS = ("src", "lab", "tests", "docs", "scripts", "playbooks", "templates", "inventory")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_the_named_files_exist(row: list[str]) -> None:
    _, edit, held = row
    for cell in (edit, held):
        named = [word for word in re.findall(r"`([^`]+)`", cell) if word.split("/")[0] in FOLDERS and "/" in word]
        assert named, cell
        assert [path for path in named if not (ROOT / path).exists()] == []
