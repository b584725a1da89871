"""Links between the pages have targets, the index and the site have every page, and the reference that the site makes
from the code is complete."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.main import VERBS
from orchestrator.doctor.rules.support.catalogue import catalogue
from orchestrator.loading.node_spec import OURS
from orchestrator.loading.profiles import load_stack, stack_names
from orchestrator.monitoring.catalogue import CATALOGUE
from orchestrator.node.dispatch import VERBS as NODE_VERBS

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
REFERENCE = {
    ROOT / "docs" / place for place in re.findall(r"reference/\S+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))
}
"""`make docs` makes them, and checks the links to their sections."""
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[tuple[Path, str]]:
    """The page's links within this repository: (path, anchor)."""
    found = _LINK.findall(_CODE.sub("", page.read_text("utf-8")))
    parts = [link.partition("#") for link in found if "://" not in link]
    return [((page.parent / path).resolve() if path else page, anchor) for path, _, anchor in parts]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub makes from a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    found = [(path, anchor) for path, anchor in links(page) if path not in REFERENCE]
    broken = [str(path) for path, _ in found if not path.exists()]
    broken += [f"{path}#{anchor}" for path, anchor in found if anchor and anchor not in anchors(path)]
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {path for path, _ in links(index)}
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page not in {*listed, index}] == []
    assert index in {path for path, _ in links(ROOT / "README.md")}


def blocks(text: str) -> list[list[str]]:
    """Paragraphs and items of lists; no tables, code or headings."""
    found: list[list[str]] = [[]]
    for line in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        if not line.strip() or re.match(r"#|\||<!--| {4,}(?! *[-\d])|!\[", line):
            found.append([])
        elif re.match(r" *(?:[-*]|\d+\.) ", line):
            found.append([line])
        else:
            found[-1].append(line)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_paragraphs_are_short(page: Path) -> None:
    found = blocks(page.read_text("utf-8"))
    assert [block[0] for block in found if len(block) > 5 or max(map(len, block), default=0) > 140] == []


_WORD = re.compile(r"\S*\w\S*")
MADE_TABLE = re.compile(r"<!-- made of .*?<!-- end -->", re.DOTALL)
"""It grows with what was run."""


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(_WORD.findall(MADE_TABLE.sub("", (ROOT / "README.md").read_text("utf-8")))) <= 700


MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))
WANTED: dict[str, Iterable[str]] = {
    "commands": [*VERBS, "usage: l40s-deploy checkpoint push", "--around-failure"],
    "findings": [*catalogue(), "| ACS redirects above a GPU | slow |"],
    "metrics": [*CATALOGUE, "L40sGangFailed", "L40sLockOld"],
    "inventory": OURS,
    "json": ["degraded_reason", "page_cache[]{gang nodes[]{name bytes room fits}}", "## why"],
    "messages": [f"### {verb}\n" for verb in NODE_VERBS],
    "advisories": [one.id for name in stack_names() for one in load_stack(name).advisories],
}


@pytest.mark.parametrize("name", MADE["PAGES"])
def test_a_page_has_everything_that_the_code_has(name: str) -> None:
    page = MADE["PAGES"][name]()
    assert [word for word in WANTED[name] if word not in page] == []


def test_make_help_fits_a_terminal() -> None:
    shown = re.findall(r"^([a-z0-9-]+):.*?## (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert shown and [name for name, words in shown if len(f"  make {name:10} {words}") > 80] == []


def test_the_site_has_every_page_once() -> None:
    found = re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2])
    ours = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(found) == sorted(
        [*ours, *(f"reference/{name}.md" for name in MADE["PAGES"]), *MADE["BESIDE"].values()]
    )
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["theme"]["font"] is False


def test_the_site_is_read_and_searched_from_files_too() -> None:
    """A browser loads no index by `fetch` there, and opens no directory's page."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert "offline" in site["plugins"] and site["use_directory_urls"] is False
    assert "iframe-worker.js" in site["extra"]["polyfills"] and (ROOT / "docs" / "iframe-worker.js").is_file()


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


_NEEDED = {
    "--attn-dp-size", "--dist-init-addr", "--ep-size", "--headless", "--host", "--master-addr", "--master-port",
    "--model", "--model-path", "--nnodes", "--node-rank", "--pipeline-parallel-size", "--port", "--pp-size",
    "--served-model-name", "--tensor-parallel-size", "--tp-size",
}  # fmt: skip
"""Without these flags nothing would start: where the ranks, the model and the service are."""
_IN_FILES = ("profile ", "stack ", "override: ")
"""Sources with reasons of their own, in their files."""


def test_whatever_a_plan_sets_beyond_the_defaults_has_its_proof_on_the_page() -> None:
    table = (ROOT / "docs" / "plan.md").read_text("utf-8").partition("## What is set beyond the defaults")[2]
    proved = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    planned = [json.loads(path.read_text("utf-8")) for path in (ROOT / "tests/golden/plan").glob("*/plan.json")]
    ours = {
        name
        for plan in planned
        for node in plan["nodes"]
        for name, source in node["sources"].items()
        if not source.startswith(_IN_FILES)
    }
    assert len(ours) > 40 and ours - _NEEDED - proved == set()
