"""The README's pictures are what `doctor --report` and `status` draw today. `make pictures` draws them anew."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PICTURES: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "picture.py"))["PICTURES"]


def texts(picture: str) -> list[str]:
    """What a reader sees of it, whatever release of rich has written the tags."""
    return [html.unescape(text).strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", picture)]


@pytest.mark.parametrize("place", PICTURES)
def test_a_picture_shows_what_the_program_shows(place: str) -> None:
    kept = (ROOT / place).read_text("utf-8")
    assert texts(kept) == texts(PICTURES[place]()) and len(texts(kept)) > 10
    assert not re.search(r"""(href|src)\s*=|url\((?!#)|@import""", kept)
    for page in ("README.md", "README.zh.md"):
        assert f"]({place})" in (ROOT / page).read_text("utf-8")
