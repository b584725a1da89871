"""Verdicts of `up --gate` on this machine, by the run that was judged: `history` shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.protocol.errors import InputError
from orchestrator.records.documents import named_file, read_document, write_document, write_whole

FORMAT = 1
KEYS = ("verdict", "old", "new", "why")
PAGE = "page"
"""Lines with both plans side by side; none in what an older release has kept."""
HTML = "html"
"""Where the same lies as a file for a browser; '' where there is none."""


def keep_gate(run_id: str, gate: Mapping[str, Any], html: str) -> str:
    """gate: KEYS, as text, and PAGE; html: the page for a browser. What can't be written is only shown. Where that page
    lies now, '' where it could not be written."""
    file = named_file("gates", run_id)
    with contextlib.suppress(InputError):
        write_document(file, {"format": FORMAT, "run_id": run_id, **gate})
        write_whole(_html(file), html)
        return str(_html(file))
    return ""


def _html(file: Path) -> Path:
    return file.with_suffix(".html")


def kept_gate(run_id: str) -> dict[str, Any] | None:
    """None where this machine judged no such run."""
    file = named_file("gates", run_id)
    return read_document(file, lambda document: _made(document, run_id, _html(file)))


def _made(document: Mapping[str, Any], run_id: str, html: Path) -> dict[str, Any] | None:
    if (document["format"], document["run_id"]) != (FORMAT, run_id):
        return None
    page = [str(line) for line in document.get(PAGE) or ()]
    return {**{key: str(document[key]) for key in KEYS}, PAGE: page, HTML: str(html) if html.is_file() else ""}
