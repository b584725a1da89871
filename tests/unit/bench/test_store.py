"""Recorded benchmark runs: unique names, read back; files that are not records are left out or refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bench.store import KEPT_RAW, MOST_RAW_BYTES, all_benches, keep_raw, new_id, read_bench, write_bench
from orchestrator.protocol.errors import InputError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "l40s-deploy" / "bench"


def record(name: str, at: float) -> dict[str, Any]:
    words = dict.fromkeys(("gang", "model", "stack", "layout", "gpu", "dataset"), "x")
    return {"id": name, "at": at, **words, "load": {}, "serving": {"output_tok_s": 1.0}}


def test_two_runs_of_one_second_have_two_names() -> None:
    first = new_id("gang 0", 0.0)
    write_bench(record(first, 0.0))
    second = new_id("gang 0", 0.0)
    assert (first, second) == ("19700101-000000-gang-0", "19700101-000000-gang-0-2")
    assert read_bench(first)["id"] == first


def test_the_oldest_comes_first_and_what_is_no_record_is_left_out(folder: Path) -> None:
    assert all_benches() == ()
    for name, at in (("b", 1.0), ("a", 2.0)):
        write_bench(record(name, at))
    for name, text in (("c", "{"), ("d", "[]"), ("e", '{"format": 1}'), ("f", "[" * 100_000)):
        (folder / f"{name}.json").write_text(text)
    assert [one["id"] for one in all_benches()] == ["b", "a"]


def test_what_the_client_wrote_lies_beside_a_record_for_its_owner_alone(folder: Path) -> None:
    for number in range(KEPT_RAW + 2):
        file = keep_raw(f"run-{number:03d}", '{"a": 1}\n')
        assert file is not None and Path(file).stat().st_mode & 0o777 == 0o600
    left = sorted(path.name for path in folder.iterdir())
    assert (len(left), left[0], left[-1]) == (KEPT_RAW, "run-002.raw.jsonl", f"run-{KEPT_RAW + 1:03d}.raw.jsonl")
    assert all_benches() == ()
    assert keep_raw("long", "x" * (MOST_RAW_BYTES + 1)) is None
    shutil.rmtree(folder)
    folder.write_text("")
    assert keep_raw("x", "{}") is None, "the record is worth more"


@pytest.mark.parametrize("name", ["none", "../a", "", "c"])
def test_a_name_that_is_no_record_is_refused(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / "c.json").write_text("{")
    with pytest.raises(InputError):
        read_bench(name)
