"""Each indented `l40s-deploy ...` line of README.md and docs/ is a command that the real parser accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from orchestrator.cli.main import parser_of

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
COMMANDS = sorted(
    {
        (page.name, line)
        for page in PAGES
        for line in re.findall(r"^ {4,}l40s-deploy (.+)$", page.read_text(), re.MULTILINE)
    }
)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_parser_accepts_it(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line, comments=True)
    parser, _ = parser_of(words[0])
    try:
        _, unknown = parser.parse_known_args(words)
    except SystemExit:
        pytest.fail(f"{page}: l40s-deploy {line}: {capsys.readouterr().err}")
    assert unknown == [], page


def test_the_pages_have_commands() -> None:
    assert {"README.md", "runbooks.md", "checkpoint.md", "doctor.md"} <= {page for page, _ in COMMANDS}
