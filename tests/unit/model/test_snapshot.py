"""A snapshot behaves like the file system it was read from: compared with a real one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.waiting import examples

from orchestrator.model.snapshot import Snapshot, snapshot_from_json, snapshot_json

NAMES = st.sampled_from(["a", "b", "c"])
PLACES = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(PLACES, TARGETS), max_size=4), st.lists(PLACES, max_size=6), TARGETS)
def test_real_paths_are_those_of_linux(links: list[tuple[str, str]], files: list[str], asked: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        made: dict[str, str] = {}
        texts: dict[str, str] = {}
        for place, target in links:
            path = root / place
            if path.parent.exists() and path.parent.resolve() == path.parent and not os.path.lexists(path):
                path.symlink_to(target)
                made[str(path)] = target
        for place in files:
            path = root / place
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.parent.resolve() == path.parent and not os.path.lexists(path):
                    path.write_text(place)
                    texts[str(path)] = place
            except OSError:
                continue
        snapshot = Snapshot(node="n", taken_at=0.0, files=texts, links=made)
        for path in (root / asked, *(root / place for place in files)):
            try:
                text = path.read_text()
            except OSError:
                continue
            assert snapshot.text(str(path)) == text
            assert snapshot.realpath(str(path)) == str(path.resolve())


def test_names_and_absence() -> None:
    snapshot = Snapshot(
        node="n",
        taken_at=0.0,
        files={"/sys/a/x": "1\n", "/sys/a/deep/y": "2"},
        links={"/sys/b": "a", "/sys/a/out": "/sys/a/deep"},
        errors={"/sys/a/closed": "EACCES"},
    )
    assert snapshot.names("/") == ("sys",)
    assert snapshot.names("/sys/b") == ("closed", "deep", "out", "x")
    assert snapshot.text("/sys/b/out/y") == "2" and snapshot.text("/sys/none") == snapshot.text("/sys/b/closed") == ""
    assert snapshot.exists("/sys/b/deep") and not snapshot.exists("/sys/c")


def test_paths_at_the_edge() -> None:
    snapshot = Snapshot(node="n", taken_at=0.0, files={"/x": "1"}, links={"/loop": "loop", "/up": "../../.."})
    assert snapshot.realpath("/up/x") == "/x" and snapshot.text("/up/x") == "1"
    assert snapshot.realpath("/") == "/" and snapshot.names("/loop") == ()
    assert Snapshot(node="n", taken_at=0.0, files={"//": "", "relative": "", "": ""}).names("/") != ("/",)


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
