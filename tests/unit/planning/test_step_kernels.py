"""The kernels of a step: they are those of the slice's record, and what they say of the articles' speeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.loading.profiles import load_profile
from orchestrator.planning import roofline, step_kernels
from orchestrator.planning.step_kernels import POINTS, SEEN, SEEN_AT, SEEN_LAYOUT, error_of, known, step
from orchestrator.protocol.planned import Layout

ARTICLES = load_profile("DeepSeek-R1-Channel-INT8")
STOCK = load_profile("DeepSeek-V3-0324")
PP4 = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)
FIGURES = Path(__file__).parents[2] / "slice" / "figures.json"


def recorded() -> dict[str, Any]:
    """The part that the kernels are of."""
    results = json.loads(FIGURES.read_text("utf-8"))["results"]
    (part,) = (
        result["figures"]
        for result in results
        if result["step"] == "one node, graphs to 128" and result["at"] == "2026-11-28 11:34:25"
    )
    found: dict[str, Any] = part
    return found


def unhurried(profile: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a step by kind, of the rank that waited least."""
    rank = min(profile["waiting_ms"], key=lambda name: profile["waiting_ms"][name])
    return {kind: spent / profile["steps"] for kind, spent in profile["ranks"][rank]["by_kind_ms"].items()}


@pytest.mark.parametrize("kind", SEEN, ids=lambda kind: kind.name)
def test_each_kind_took_what_was_recorded(kind: step_kernels.Kind) -> None:
    for profile, seconds in zip(recorded()["profiles"], (kind.few_s, kind.many_s), strict=True):
        assert profile["requests"] in SEEN_AT
        assert 1000 * seconds == pytest.approx(unhurried(profile)[kind.name], abs=0.02)


def test_the_host_takes_what_a_step_has_beyond_its_kernels() -> None:
    part = recorded()
    for profile in part["profiles"]:
        (shown,) = part["loads"][str(profile["requests"])]["steps"]
        busy = sum(unhurried(profile).values())
        assert pytest.approx(shown["step_ms"] - busy, abs=0.25) == 1000 * step_kernels.GAP_S


def test_what_was_seen_comes_out_on_the_gpu_that_it_was_seen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(step_kernels.TFLOPS, "H100", step_kernels.SEEN_TFLOPS)
    monkeypatch.setitem(roofline.MEMORY_GBS, "H100", step_kernels.SEEN_GBS)
    profile = load_profile("DeepSeek-V3-0324-Block64x64")
    for place, requests in enumerate(SEEN_AT):
        kernels = step(profile, SEEN_LAYOUT, requests, gpu="H100").kernels
        wanted = sum((kind.few_s, kind.many_s)[place] for kind in SEEN)
        assert sum(kernels.values()) == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("requests", [1, 4, 32])
def test_the_articles_speeds_come_out_without_being_in_it(requests: int) -> None:
    assert abs(error_of(ARTICLES, requests)) < 0.15


def test_with_128_requests_it_is_known_to_be_too_fast() -> None:
    assert 0.3 < error_of(ARTICLES, 128) < 0.4
    assert set(POINTS) == {1, 4, 32, 128}


def test_stages_divide_the_requests_and_widen_the_ranks() -> None:
    wide, narrow = step(STOCK, PP4, 128, gpu="L40S"), step(ARTICLES, SEEN_LAYOUT, 32, gpu="L40S")
    assert wide.kernels["experts"] > narrow.kernels["experts"]
    assert wide.kernels["attention"] == pytest.approx(narrow.kernels["attention"])
    assert wide.gap_s == 4 * narrow.gap_s


@pytest.mark.parametrize(
    ("model", "layout", "gpu"),
    [
        ("Qwen3-235B-A22B-Instruct-2507-FP8", SEEN_LAYOUT, "NVIDIA L40S"),
        ("DeepSeek-V3-0324", SEEN_LAYOUT, "NVIDIA A100-SXM4-80GB"),
        ("DeepSeek-V3-0324", Layout(tensor_parallel=32, expert_parallel=2, nnodes=4, gpus_per_node=8), "NVIDIA L40S"),
    ],
)
def test_other_models_gpus_and_layouts_are_not_known(model: str, layout: Layout, gpu: str) -> None:
    assert not known(load_profile(model), layout, gpu) and known(STOCK, PP4, "NVIDIA L40S")
