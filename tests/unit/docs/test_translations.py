"""A Chinese page matches the English one it was translated from: each section carries the English section's digest.

After translating the changes, UPDATE_GOLDEN=1 rewrites the digests.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = {
    "README.md": "README.zh.md",
    "docs/tutorial.md": "docs/zh/tutorial.md",
    "docs/doctor.md": "docs/zh/doctor.md",
    "docs/prepare.md": "docs/zh/prepare.md",
    "docs/checkpoint.md": "docs/zh/checkpoint.md",
    "docs/plan.md": "docs/zh/plan.md",
    "docs/habits.md": "docs/zh/habits.md",
    "docs/runbooks.md": "docs/zh/runbooks.md",
    "docs/service.md": "docs/zh/service.md",
}
MARK = re.compile(r"^<!-- translated from (?P<page>\S+), (?P<title>.+): (?P<digest>\w+) -->$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Digest of each section by its title; lines inside a code block are no titles."""
    found: dict[str, list[str]] = {}
    title, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (heading := re.match(r"##? (.+)", line)):
            title = heading[1]
        found.setdefault(title, []).append(line.rstrip())
    return {name: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12] for name, lines in found.items() if name}


@pytest.mark.parametrize(("english", "chinese"), PAGES.items())
def test_neither_page_moved_alone(english: str, chinese: str) -> None:
    wanted = sections((ROOT / english).read_text("utf-8"))
    page = ROOT / chinese
    text = page.read_text("utf-8")
    if os.environ.get("UPDATE_GOLDEN"):
        text = MARK.sub(
            lambda one: f"<!-- translated from {one['page']}, {one['title']}: {wanted.get(one['title'], 'gone')} -->",
            text,
        )
        page.write_text(text, "utf-8")
    told = {one["title"]: one["digest"] for one in MARK.finditer(text)}
    assert {one["page"] for one in MARK.finditer(text)} == {english}
    moved = sorted(title for title in wanted.keys() | told.keys() if wanted.get(title) != told.get(title))
    assert not moved, (
        f"{chinese}: translate these sections of {english}, then run this test with UPDATE_GOLDEN=1: {moved}"
    )


@pytest.mark.parametrize(("english", "chinese"), PAGES.items())
def test_both_have_the_same_commands_in_the_same_order(english: str, chinese: str) -> None:
    assert commands((ROOT / chinese).read_text("utf-8")) == commands((ROOT / english).read_text("utf-8"))


@pytest.mark.parametrize(("english", "chinese"), PAGES.items())
def test_both_are_as_complete_as_each_other(english: str, chinese: str) -> None:
    """The same headings of the same depth, rows of tables, pictures, and words of code, whatever stands around them."""
    wanted, told = (parts((ROOT / page).read_text("utf-8")) for page in (english, chinese))
    assert told == wanted


def parts(text: str) -> tuple[list[int], int, int, list[str]]:
    """Depths of headings, counts of rows and of pictures, words of code."""
    depths = [len(heading) for heading in re.findall(r"^(#+) ", text, re.MULTILINE)]
    rows = len(re.findall(r"^\|", text, re.MULTILINE))
    return depths, rows, text.count("!["), sorted(re.findall(r"`([^`\n]+)`", text))


def commands(text: str) -> list[str]:
    """Code blocks without their comments, which are translated."""
    return [re.sub(r"\s+#.*", "", line) for line in re.findall(r"^ {4,}(l40s-deploy .+)$", text, re.MULTILINE)]


def test_a_section_s_digest_changes_with_it() -> None:
    page = "# A\n\none\n\n## B\n\n```sh\n## no title\n```\n"
    assert set(sections(page)) == {"A", "B"}
    changed = sections(page.replace("one", "two"))
    assert changed["A"] != sections(page)["A"] and changed["B"] == sections(page)["B"]
