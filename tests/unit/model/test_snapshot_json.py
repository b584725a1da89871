"""A snapshot survives its JSON; a document that is not a snapshot is refused with a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.snapshot_json import snapshot_from_json, snapshot_json

TEXTS = st.dictionaries(
    st.text(), st.one_of(st.text(), st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")))
)


@given(TEXTS, TEXTS, TEXTS, st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_there_and_back(
    files: dict[str, str], links: dict[str, str], errors: dict[str, str], node: str, taken_at: float
) -> None:
    snapshot = Snapshot(
        node=node, taken_at=taken_at, files=files, links=links, errors=errors, nvml={"error": "x"}, host={"uid": 0}
    )
    written = json.dumps(snapshot_json(snapshot))
    assert written.isascii()
    assert snapshot_from_json(json.loads(written)) == snapshot


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "no JSON object"),
        ([], "no JSON object"),
        ({}, "found format None, wanted 1"),
        ({"format": 2}, "found format 2, wanted 1"),
        ({"format": 1, "taken_at": "now"}, "found taken_at 'now'"),
        ({"format": 1, "files": []}, ""),
        ({"format": 1, "files": [1]}, "files that is no object"),
        ({"format": 1, "links": {"/a": 1}}, "links['/a'] that is no text"),
        ({"format": 1, "host": "x"}, "host that is no object"),
    ],
)
def test_refusals(raw: Any, words: str) -> None:
    if not words:
        assert snapshot_from_json(raw).files == {}
        return
    with pytest.raises(ValueError, match="found") as refused:
        snapshot_from_json(raw)
    assert words in str(refused.value)
