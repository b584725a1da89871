"""The reference that the site makes from the code is complete, and the site has every page."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.main import VERBS
from orchestrator.doctor.rules.support.catalogue import catalogue
from orchestrator.loading.node_spec import OURS
from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.monitoring.catalogue import CATALOGUE
from orchestrator.node.dispatch import VERBS as NODE_VERBS

ROOT = Path(__file__).parents[3]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))
WANTED: dict[str, Iterable[str]] = {
    "commands": [*VERBS, "usage: l40s-deploy checkpoint push", "--around-failure"],
    "findings": [*catalogue(), "| ACS redirects above a GPU | slow |"],
    "metrics": [*(one.name for one in CATALOGUE), "L40sGangFailed", "L40sLockOld"],
    "inventory": OURS,
    "json": ["degraded_reason", "page_cache[]{gang nodes[]{name bytes room fits}}", "## why"],
    "messages": [f"### {verb}\n" for verb in NODE_VERBS],
    "advisories": [one.id for name in stack_names() for one in load_stack(name).advisories],
}


@pytest.mark.parametrize("name", MADE["PAGES"])
def test_a_page_has_everything_that_the_code_has(name: str) -> None:
    page = MADE["PAGES"][name]()
    assert [word for word in WANTED[name] if word not in page] == []


def test_the_site_has_every_page_once() -> None:
    found = re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2])
    ours = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(found) == sorted(
        [*ours, *(f"reference/{name}.md" for name in MADE["PAGES"]), *MADE["BESIDE"].values()]
    )
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["theme"]["font"] is False


@pytest.mark.parametrize(
    ("place", "written", "shown"),
    [
        ("lab.md", "[a](../tests/lab/faults.md)", "[a](reference/lab-faults.md)"),
        ("overview.md", "[a](docs/zh/habits.md#b)", "[a](zh/habits.md#b)"),
        ("results/contract.md", "[a](../../README.md)", "[a](../overview.md)"),
        ("plan.md", "[`a`](../src/orchestrator/gang/commands/up.py)", "`a`"),
        ("plan.md", "[a](https://example.org/b)", "[a](https://example.org/b)"),
    ],
)
def test_a_link_between_files_is_one_between_pages(place: str, written: str, shown: str) -> None:
    class Page:
        class file:  # noqa: N801
            src_uri = place

    link: Callable[..., str] = MADE["on_page_markdown"]
    assert link(written, page=Page) == shown
