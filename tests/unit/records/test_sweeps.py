"""Kept sweeps: one for each gang, model, stack and load; what is none is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.sweep.made import LOAD, record, result

from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.records.sweeps import keep_sweep, kept_sweep, sweep_file, sweeps_of


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


GANG = GangSpec(name="gang0", nodes=(NodeSpec(name="n0", gang="gang0", node_rank=0, reach=Reach(host="n0")),))
KEPT = record(result("a", {1: 5.0}), at=1.0)


def test_it_is_read_back_by_what_it_measures() -> None:
    assert kept_sweep(KEPT) is None
    keep_sweep(KEPT)
    assert kept_sweep(record()) == KEPT
    for other in (
        {"gang": "gang1"},
        {"addresses": ("n1:",)},
        {"model": "n"},
        {"stack": "t"},
        {"load": replace(LOAD, requests=(1,))},
        {"load": replace(LOAD, output=512)},
        {"load": replace(LOAD, dataset="theirs")},
    ):
        assert sweep_file(record(**other)) != sweep_file(KEPT) and kept_sweep(record(**other)) is None


def test_the_newest_of_a_model_on_these_nodes_comes_first() -> None:
    newer = replace(record(result("b", {1: 6.0}), at=2.0), load=replace(LOAD, output=512))
    for one in (KEPT, newer, record(model="n"), record(addresses=("elsewhere:22",), stack="t")):
        keep_sweep(one)
    assert sweeps_of(GANG, "m") == (newer, KEPT)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 1}', "[" * 100_000])
def test_what_is_no_record_is_none(text: str) -> None:
    keep_sweep(KEPT)
    sweep_file(KEPT).write_text(text)
    assert kept_sweep(KEPT) is None and sweeps_of(GANG, "m") == ()


def test_another_format_is_none() -> None:
    keep_sweep(replace(KEPT, format=2))
    assert kept_sweep(KEPT) is None
