"""The speed model: it gives back what it was fitted to, predicts what it was not, and says so where it can't."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.model.layout import Layout
from orchestrator.planning.memory import routed_experts_per_gpu, weights_per_gpu
from orchestrator.planning.roofline import BATCHES, POINTS, leave_one_out, speeds, words

ARTICLES = load_profile("DeepSeek-R1-Channel-INT8")
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
PP4 = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)


def of(
    layout: Layout = TP32, gpu: str = "NVIDIA L40S", all_reduce: dict[int, float] | None = None, whole: int = 2
) -> dict[int, float]:
    found = speeds(ARTICLES, layout, gpu, all_reduce=all_reduce, whole_reduces=whole)
    assert found is not None
    return dict(found.tokens_per_s)


@pytest.mark.parametrize("batch", BATCHES)
def test_each_point_is_predicted_from_the_other_three(batch: int) -> None:
    assert leave_one_out()[batch] < 0.15
    assert of()[batch] == pytest.approx(POINTS[batch], rel=0.05)


def test_the_error_is_that_of_the_points_it_was_not_fitted_to() -> None:
    found = speeds(ARTICLES, TP32)
    assert found is not None and found.error == max(leave_one_out().values())
    assert "calculated" in found.basis and "no other layout was measured" in found.basis
    assert words(found).startswith("51 / 153 / 442 / 800 tokens/s at 1 / 4 / 32 / 128 requests")


def test_pipelines_of_groups_inside_a_node_lose_alone_and_win_together() -> None:
    apart, together = of(PP4), of(TP32)
    assert apart[1] < together[1] and apart[128] > together[128]


def test_a_measured_all_reduce_takes_the_place_of_the_calculated_one() -> None:
    slow = of(all_reduce={1: 200e-6})
    assert slow[1] == pytest.approx(1 / (1 / of()[1] + 122 * (200 - 48) * 1e-6), rel=0.01)
    assert slow[128] == of()[128]


def test_attention_groups_a_node_halve_the_network_and_read_more_weights() -> None:
    """At 128 requests half of the all-reduces stay in a node; one request alone fills up three idle groups' rows."""
    grouped = replace(TP32, attention_data_parallel=4)
    new, old, plain = of(grouped, whole=1), of(grouped, whole=2), of(TP32)
    assert new[128] > plain[128] > old[128], "0.4.4 keeps both all-reduces, and reads more weights of attention"
    assert old[1] < plain[1]


@given(st.sampled_from(BATCHES), st.sampled_from(["NVIDIA L40S", "NVIDIA H200", "NVIDIA A100 80GB PCIe"]))
def test_more_memory_bandwidth_is_never_slower(batch: int, gpu: str) -> None:
    assert of(gpu=gpu)[batch] >= of()[batch] * 0.999


def test_what_nobody_can_say_is_not_said() -> None:
    assert speeds(ARTICLES, TP32, "Somebody's GPU") is None
    assert speeds(ARTICLES, replace(TP32, expert_parallel=2)) is None
    other = replace(ARTICLES, dimensions=replace(ARTICLES.dimensions, kv_lora_rank=0))
    assert speeds(other, TP32) is None


@pytest.mark.parametrize("name", sorted(profile_names()))
def test_no_shipped_model_reads_less_than_nothing(name: str) -> None:
    """INT4 and MXFP4 experts are half a byte a weight: as whole bytes they outweighed the GPU's weights."""
    profile = load_profile(name)
    for layout in (TP32, PP4):
        assert (
            0
            <= routed_experts_per_gpu(profile, layout)
            < weights_per_gpu(profile, replace(layout, pipeline_parallel=1))
        )
        found = speeds(profile, layout)
        assert found is None or all(speed > 0 for speed in found.tokens_per_s.values())
