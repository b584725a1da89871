"""Links between the pages have targets (the reference is made from the code), and the index has every page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

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


def test_there_are_not_more_words_than_can_be_read() -> None:
    words = {
        page: len(page.read_text("utf-8").split()) for page in PAGES if page.parent != ROOT or "README" in page.name
    }
    assert words[ROOT / "README.md"] <= 1_000
    assert sum(words.values()) <= 25_000
