"""Verdicts of `up --gate` on this machine, by the run that was judged: `history` shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from orchestrator.model.errors import InputError
from orchestrator.records.documents import named_file, read_document, write_document

FORMAT = 1
KEYS = ("verdict", "old", "new", "why")
PAGE = "page"
"""Lines with both plans side by side; none in what an older release has kept."""


def keep_gate(run_id: str, gate: Mapping[str, Any]) -> None:
    """gate: KEYS, as text, and PAGE. One that can't be written is only shown."""
    with contextlib.suppress(InputError):
        write_document(named_file("gates", run_id), {"format": FORMAT, "run_id": run_id, **gate})


def kept_gate(run_id: str) -> dict[str, Any] | None:
    """None where this machine judged no such run."""
    return read_document(named_file("gates", run_id), lambda document: _made(document, run_id))


def _made(document: Mapping[str, Any], run_id: str) -> dict[str, Any] | None:
    if (document["format"], document["run_id"]) != (FORMAT, run_id):
        return None
    page = [str(line) for line in document.get(PAGE) or ()]
    return {**{key: str(document[key]) for key in KEYS}, PAGE: page}
