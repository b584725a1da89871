"""A node's own per-rank files: copied from a shared directory, found again, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.cache.test_reader import presharded

from orchestrator.node.checkpoint import rank_files
from orchestrator.node.failure import Failure


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ask for an op; returns the last line of its answer."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(rank_files, "tell", told.append)
    monkeypatch.setattr(rank_files, "reader_is_gone", lambda _: False)

    def ask(**request: Any) -> dict[str, Any]:
        rank_files.stream(request)
        return told[-1]

    return ask


def keep(verb: Any, source: Path, target: Path, *ranks: int) -> dict[str, Any]:
    return dict(verb(op="keep", source=str(source), folder=str(target), ranks=list(ranks), key="k"))


def test_a_node_keeps_its_own_ranks_files_and_no_others(verb: Any, tmp_path: Path) -> None:
    source, target = presharded(tmp_path / "shared" / "f"), tmp_path / "own" / "f"
    assert keep(verb, source, target, 1)["files"] == 4
    names = {path.name for path in target.rglob("*") if path.is_file()}
    assert names == {
        "model-00001-common.safetensor",
        "model-00003-rank-001.safetensor",
        "checksum.json",
        "READY",
        "l40s-ranks-001-001.json",
    }
    (found,) = rank_files.held(str(tmp_path / "own"))
    assert (found.folder, found.ranks, found.key, found.complete) == ("f", (1,), "k", True)
    size = 22 + _plan_bytes(target)
    assert found.bytes == size
    assert verb(op="check", folder=str(target)) == {"bytes": size, "total": size, "files": 4, "differ": []}


def _plan_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("checksum.json"))


def test_files_that_stay_where_they_were_written_get_a_manifest_for_each_node(verb: Any, tmp_path: Path) -> None:
    folder = presharded(tmp_path / "shared" / "f")
    for rank in (0, 1):
        keep(verb, folder, folder, rank)
    assert [one.ranks for one in rank_files.held(str(tmp_path / "shared"))] == [(0,), (1,)]


def test_a_damaged_file_is_told_and_a_missing_one_makes_the_set_incomplete(verb: Any, tmp_path: Path) -> None:
    source, target = presharded(tmp_path / "shared" / "f"), tmp_path / "own" / "f"
    keep(verb, source, target, 0)
    (odd,) = target.rglob("model-00000-*")
    odd.write_bytes(b"y" * 10)
    assert verb(op="check", folder=str(target))["differ"] == [f"{odd.parent.name}/{odd.name}"]
    assert rank_files.held(str(tmp_path / "own"))[0].complete, "a look does not read"
    odd.unlink()
    assert not rank_files.held(str(tmp_path / "own"))[0].complete


@pytest.mark.parametrize(
    "request_", [{"op": "keep", "ranks": [0]}, {"op": "check"}, {"op": "keep", "ranks": [7]}, {"op": "burn"}]
)
def test_what_can_not_be_done_is_refused_in_words(verb: Any, tmp_path: Path, request_: dict[str, Any]) -> None:
    source = presharded(tmp_path / "half", ready=request_.get("ranks") == [7])
    with pytest.raises(Failure):
        verb(source=str(source), folder=str(tmp_path / "own"), key="k", **request_)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"ranks": [0], "key": "k", "files": [{"name": "../x"}]})])
def test_a_manifest_that_is_none_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "l40s-ranks-000-000.json").write_text(text)
    assert [one for one in rank_files.held(str(tmp_path)) if one.complete] == []
    assert rank_files.held(str(tmp_path / "absent")) == ()
