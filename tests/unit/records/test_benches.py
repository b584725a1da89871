"""Recorded benchmark runs: named once, read back, and what is no record is left out or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.errors import InputError
from orchestrator.records.benches import all_benches, new_id, read_bench, write_bench


def record(name: str, at: float) -> dict[str, Any]:
    words = dict.fromkeys(("gang", "model", "stack", "layout", "gpu", "dataset"), "x")
    return {"id": name, "at": at, **words, "load": {}, "serving": {"output_tok_s": 1.0}}


def test_two_runs_of_one_second_have_two_names(tmp_path: Path) -> None:
    first = new_id("gang 0", 0.0, root=tmp_path)
    write_bench(record(first, 0.0), root=tmp_path)
    second = new_id("gang 0", 0.0, root=tmp_path)
    assert (first, second) == ("19700101-000000-gang-0", "19700101-000000-gang-0-2")
    assert read_bench(first, root=tmp_path)["id"] == first


def test_the_oldest_comes_first_and_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    for name, at in (("b", 1.0), ("a", 2.0)):
        write_bench(record(name, at), root=tmp_path)
    for name, text in (("c", "{"), ("d", "[]"), ("e", '{"format": 1}'), ("f", "[" * 100_000)):
        (tmp_path / f"{name}.json").write_text(text)
    assert [one["id"] for one in all_benches(root=tmp_path)] == ["b", "a"]
    assert all_benches(root=tmp_path / "none") == ()


@pytest.mark.parametrize("name", ["none", "../a", "", "c"])
def test_a_name_that_is_no_record_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(InputError):
        read_bench(name, root=tmp_path)
