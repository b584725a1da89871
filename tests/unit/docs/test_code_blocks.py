"""Each block of commands on a page is one block in the built site too, with a line for each command."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))
SOURCES = {
    **{str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))},
    **{place: ROOT / source for source, place in MADE["BESIDE"].items()},
}
"""Place of a page in the site -> its file."""
_PRE = re.compile(r"<pre\b[^>]*>(.*?)</pre>", re.DOTALL)


def written(text: str) -> list[str]:
    """The blocks of code that GitHub shows."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [token.content.strip("\n") for token in tokens if token.type in ("code_block", "fence")]


def built(text: str, place: str) -> list[str]:
    """The blocks of code that the site shows."""
    markdown = pytest.importorskip("markdown", reason="`make docs` installs what the site is built with")
    pytest.importorskip("pymdownx")

    class Page:
        class file:  # noqa: N801
            src_uri = place

    extensions = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["markdown_extensions"]
    page = markdown.markdown(MADE["on_page_markdown"](text, page=Page), extensions=extensions)
    return [html.unescape(re.sub(r"<[^>]+>", "", block)).strip("\n") for block in _PRE.findall(page)]


@pytest.mark.parametrize("place", sorted(SOURCES))
def test_a_block_of_a_page_is_one_of_the_site(place: str) -> None:
    text = SOURCES[place].read_text("utf-8")
    assert built(text, place) == written(text)


LISTS = """\
1. First:

       l40s-deploy why
       l40s-deploy doctor

   Then this.
2. Second
- other

      l40s-deploy status

```text
1. no list
   of ours
```
"""


def test_code_below_items_of_each_kind() -> None:
    expected = ["l40s-deploy why\nl40s-deploy doctor", "l40s-deploy status", "1. no list\n   of ours"]
    assert written(LISTS) == expected
    assert built(LISTS, "plan.md") == expected
