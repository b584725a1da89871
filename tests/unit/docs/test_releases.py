"""docs/releases.md against what the program does: what a release of this version has, a later one has too."""

from __future__ import annotations

import json
import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli import main as cli
from orchestrator.cli.main import VERBS, every_parser, verbs_of
from orchestrator.doctor.rules.support.catalogue import catalogue
from orchestrator.loading.node_spec import OURS
from orchestrator.protocol.errors import Exit

ROOT = Path(__file__).parents[3]
PROMISED = ROOT / "tests" / "recorded" / "release-0.2.0.json"
PAGE = (ROOT / "docs" / "releases.md").read_text("utf-8")
UPGRADING = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("**Upgrading**")[2].partition("\n**")[0]


def options() -> Iterator[str]:
    """'up --model' for every option of every verb."""
    for verb, parser in verbs_of(every_parser()).items():
        below = [parser, *verbs_of(parser).values()]
        yield from (f"{verb} {word}" for each in below for action in each._actions for word in action.option_strings)


def had() -> dict[str, list[str]]:
    """What others rely on, by kind."""
    documents = runpy.run_path(str(ROOT / "scripts/reference.py"))["PAGES"]["json"]()
    shapes = "\n".join(re.findall(r"`([^`\n]+)`", documents))
    return {
        "exit codes": [f"{code.value} {code.name}" for code in Exit],
        "keys of JSON documents": sorted(set(re.findall(r"[a-z][a-z0-9_]*", shapes))),
        "ids of findings and causes": sorted(catalogue()),
        "verbs": sorted(VERBS),
        "options": sorted(set(options())),
        "variables": sorted(OURS),
    }


def test_what_a_release_had_later_ones_have() -> None:
    """`UPDATE_GOLDEN=1` adds what is new. What is gone stays in the file, and is named under *Upgrading*."""
    now, promised = had(), json.loads(PROMISED.read_text("utf-8")) if PROMISED.exists() else {}
    if os.environ.get("UPDATE_GOLDEN"):
        grown = {kind: sorted({*words, *promised.get(kind, ())}) for kind, words in now.items()}
        PROMISED.write_text(json.dumps(grown, indent=1) + "\n", "utf-8")
        return
    assert set(promised) == set(now)
    gone = {word for kind, words in promised.items() for word in words if word not in now[kind]}
    assert [word for word in sorted(gone) if f"`{word}`" not in UPGRADING] == []


def test_the_newest_release_of_the_changelog_is_this_version_with_its_day() -> None:
    """The day of its last commit, or a later one where it is prepared."""
    newest = re.search(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == __version__
    days = re.findall(r"\b20\d{2}-\d{2}-\d{2}\b", (ROOT / "docs" / "proven.md").read_text("utf-8"))
    assert max(days) <= newest[2], "figures of a later day than the release that shows them"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["status", "--no-such-option"], "--no-such-option"),
        (["no-such-verb"], "no-such-verb"),
        (["status", "-i", "hosts.yml"], "l40s_no_such_variable"),
    ],
)
def test_an_unknown_word_is_refused_and_never_ignored(
    words: list[str], refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yml").write_text("gangs: {children: {g: {hosts: {a: {l40s_no_such_variable: 1}}}}}\n")
    try:
        code = cli.main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == Exit.INPUT and refused in capsys.readouterr().err


def test_the_page_names_the_pythons_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert f"**Python** {named[0]} to {named[-1]} on the controller" in PAGE
