"""The speed model: it reproduces its fitted points, predicts others, and says where it can't."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.reference_cluster import gang

from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.planning.layout import flags
from orchestrator.planning.memory import checkpoint_bytes, routed_experts_per_gpu, weights_per_gpu
from orchestrator.planning.offers import offer
from orchestrator.planning.roofline import (
    BATCHES,
    POINTS,
    RDMA,
    WRONG_POINTS,
    Network,
    OwnPoint,
    bytes_a_token,
    leave_one_out,
    speeds,
    unsaid,
    words,
)  # fmt: skip
from orchestrator.planning.steps.models import fit_words, layouts_json
from orchestrator.protocol.planned import Layout
from orchestrator.topology.speed import Traffic

ARTICLES = load_profile("DeepSeek-R1-Channel-INT8")
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
PP4 = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)


def of(layout: Layout = TP32, gpu: str = "NVIDIA L40S", network: Network = RDMA, whole: int = 2) -> dict[int, float]:
    return dict(speeds(ARTICLES, layout, gpu, network=network, whole_reduces=whole).tokens_per_s)


@pytest.mark.parametrize("batch", BATCHES)
def test_each_point_is_predicted_from_the_other_three(batch: int) -> None:
    assert leave_one_out()[batch] < 0.15
    assert of()[batch] == pytest.approx(POINTS[batch], rel=0.05)


def test_the_error_is_that_of_the_points_it_was_not_fitted_to() -> None:
    found = speeds(ARTICLES, TP32)
    assert found.error == max(leave_one_out().values())
    assert "calculated" in found.basis and "no other layout was measured" in found.basis
    assert words(found).startswith(
        "51 / 153 / 442 / 800 tokens/s at 1 / 4 / 32 / 128 requests: a step of 20 / 26 / 72 / 160 ms, of it weights"
        " 4 / 7 / 23 / 34, all-reduces 6 / 8 / 19 / 35, the rest 10 / 12 / 30 / 91 (calculated"
    )


def test_the_parts_of_a_step_are_shown_for_every_layout() -> None:
    offered = offer(ARTICLES, load_stack("sglang-0.5.23"), gang())
    first = next(fit for fit in offered.fits if fit.layout == TP32)
    assert "34 + 35 + 91 ms a step at 128 (weights, all-reduces, rest)" in fit_words(first)
    shown = layouts_json((first,))[0]
    for requests, parts in shown["step_ms"].items():
        assert parts.keys() == {"weights", "all_reduces", "rest"}
        assert sum(parts.values()) == pytest.approx(1000 * int(requests) / shown["tokens_per_s"][requests], rel=0.02)


def test_pipelines_of_groups_inside_a_node_lose_alone_and_win_together() -> None:
    apart, together = of(PP4), of(TP32)
    assert apart[1] < together[1] and apart[128] > together[128]


def test_a_measured_all_reduce_takes_the_place_of_the_calculated_one() -> None:
    slow = of(network=Network(everywhere={1: 200e-6}, inside={1: 1.0}, test="nettest t1"))
    assert slow[1] == pytest.approx(1 / (1 / of()[1] + 122 * (200 - 48) * 1e-6), rel=0.01)
    assert slow[128] == of()[128], "not measured, and not guessed from what was"


def test_what_was_measured_inside_a_node_is_what_pipeline_stages_wait_for() -> None:
    """At 32 requests a stage has 8, between two measured sizes."""
    network = Network(everywhere={8: 1.0}, inside={4: 100e-6, 32: 380e-6}, test="nettest t1")
    calculated, measured = of(PP4), of(PP4, network=network)
    assert measured[1] == calculated[1]
    alone = replace(PP4, pipeline_parallel=1, nnodes=1)
    known = 35e-6 + 8 * 14336 * 2 * 7 / 8 / 11e9
    added = 32 / measured[32] - 32 / calculated[32]
    assert added == pytest.approx(122 * (140e-6 - known), rel=0.05)
    found = speeds(ARTICLES, alone, network=network)
    assert found is not None and "nettest t1" in found.basis and "one node" in found.basis


@pytest.mark.parametrize("batch", BATCHES)
def test_a_cluster_on_tcp_is_calculated_for_tcp(batch: int) -> None:
    over_tcp = Network(traffic=Traffic.TCP)
    assert of(network=over_tcp)[batch] == pytest.approx(WRONG_POINTS[batch], rel=0.1)
    assert 0.98 < of(PP4, network=over_tcp)[batch] / of(PP4)[batch] < 1, "hand-overs cost next to nothing, and some"


def test_the_basis_says_for_which_transport_it_was_calculated() -> None:
    tcp, assumed = (speeds(ARTICLES, TP32, network=Network(traffic=t, assumed=a))
                    for t, a in ((Traffic.TCP, False), (Traffic.RAILS, True)))  # fmt: skip
    assert tcp is not None and tcp.basis.startswith("calculated for TCP between the nodes:")
    assert tcp.error == max(leave_one_out(Traffic.TCP).values())
    assert f"predicts from the others within {100 * tcp.error:.0f} %" in tcp.basis
    assert assumed is not None and assumed.basis.startswith("calculated for RDMA between the nodes, assumed:")


def test_wrong_wiring_is_predicted_where_another_point_has_its_kind_of_message() -> None:
    """A single request has none: the error states that and is not omitted."""
    found = leave_one_out(Traffic.TCP)
    assert max(found[batch] for batch in BATCHES[1:]) < 0.35 < found[1] < 0.6


def test_attention_groups_a_node_halve_the_network_and_read_more_weights() -> None:
    """At 128 requests half of the all-reduces stay in a node; a single request also pads three idle groups' rows."""
    grouped = replace(TP32, attention_data_parallel=4)
    new, old, plain = of(grouped, whole=1), of(grouped, whole=2), of(TP32)
    assert new[128] > plain[128] > old[128], "0.4.4 keeps both all-reduces, and reads more weights of attention"
    assert old[1] < plain[1]


@given(st.sampled_from(BATCHES), st.sampled_from(["NVIDIA L40S", "NVIDIA RTX 6000 Ada Generation"]))
def test_more_memory_bandwidth_is_never_slower(batch: int, gpu: str) -> None:
    assert of(gpu=gpu)[batch] >= of()[batch] * 0.999


def test_what_nobody_can_say_is_not_said() -> None:
    other = replace(ARTICLES, dimensions=replace(ARTICLES.dimensions, kv_lora_rank=0))
    assert "memory bandwidth" in unsaid(ARTICLES, TP32, "Somebody's GPU")
    assert "NVLink" in unsaid(ARTICLES, PP4, "NVIDIA H200")
    assert not unsaid(ARTICLES, PP4, "NVIDIA L40S")
    assert "expert parallelism" in unsaid(ARTICLES, replace(TP32, expert_parallel=2), "L40S")
    assert "MLA" in unsaid(other, TP32, "L40S")


@pytest.mark.parametrize("name", sorted(profile_names()))
def test_no_shipped_model_reads_less_than_nothing(name: str) -> None:
    """INT4 and MXFP4 experts take half a byte per weight: counted as full bytes, they exceeded the GPU's weights."""
    profile = load_profile(name)
    for layout in (TP32, PP4):
        flat = replace(layout, pipeline_parallel=1)
        assert 0 <= routed_experts_per_gpu(profile, layout) < weights_per_gpu(profile, flat)
        assert all(speed > 0 for speed in speeds(profile, layout).tokens_per_s.values())


STOCK = load_profile("DeepSeek-V3-0324")
NUMBER = 7168 * 2


@pytest.mark.parametrize(
    ("tensor", "pipeline", "nodes", "sent"),
    [
        (32, 1, 4, int(61 * 2 * 4 * 2 * 31 / 32 * NUMBER)),
        (8, 4, 4, 3 * 2 * NUMBER),
        (16, 2, 4, int(61 * 2 * 2 * 2 * 15 / 16 * NUMBER) + 2 * NUMBER),
        (4, 8, 4, 3 * 2 * NUMBER),
        (4, 2, 1, 0),
        (8, 1, 1, 0),
    ],
)
def test_what_crosses_nodes_is_counted(tensor: int, pipeline: int, nodes: int, sent: int) -> None:
    layout = Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, nnodes=nodes, gpus_per_node=8)
    assert bytes_a_token(STOCK.dimensions, layout) == sent


@pytest.mark.parametrize(
    ("groups", "whole", "ring"),
    [
        (4, 1, 4 * 2 * 31 / 32),
        (2, 1, 4 * 2 * 31 / 32 + 2 * 2 * 15 / 16),
        (4, 2, 2 * 4 * 2 * 31 / 32),
        (1, 1, 2 * 4 * 2 * 31 / 32),
    ],
)
def test_attention_groups_keep_an_all_reduce_to_themselves(groups: int, whole: int, ring: float) -> None:
    layout = Layout(tensor_parallel=32, attention_data_parallel=groups, nnodes=4, gpus_per_node=8)
    assert bytes_a_token(STOCK.dimensions, layout, whole_reduces=whole) == int(61 * ring * NUMBER)


def test_attention_groups_a_node_are_offered_where_a_tensor_parallel_group_spans_nodes() -> None:
    fits = {str(fit.layout): fit for fit in offer(STOCK, load_stack("sglang-0.5.23"), gang()).fits}
    grouped, plain = fits["TP32 with EP2 and attention DP4"], fits["TP32 with EP2"]
    assert grouped.sent * 2 == plain.sent
    assert flags(grouped.layout) == "--tp 32 --ep 2 --attn-dp 4"
    assert "in each of 4 groups" in fit_words(grouped)
    (document,) = layouts_json((grouped,))
    assert (document["tp"], document["ep"], document["attn_dp"]) == (32, 2, 4)
    assert "PP4 x TP8 with attention DP1" not in fits and "PP4 x TP8" in fits


def test_a_stage_a_node_reads_a_quarter_and_says_its_name() -> None:
    fits = {str(fit.layout): fit for fit in offer(STOCK, load_stack("sglang-0.5.23"), gang()).fits}
    staged, spread = fits["PP4 x TP8"], fits["TP32 with EP2"]
    assert staged.name == "node-stages" and staged.sent * 100 < spread.sent
    whole = checkpoint_bytes(STOCK)
    assert (staged.read, spread.read) == (whole // 4, whole)
    words = fit_words(staged)
    assert words.startswith("PP4 x TP8 (node-stages): ") and "86 kB per token between nodes" in words
    assert "tokens/s at 1 and 128 requests" in words and "at 5 GB/s" in words
    (document,) = layouts_json((staged,))
    assert (document["layout"], document["attn_dp"], document["pp"]) == ("node-stages", 1, 4)
    assert document["calculated"] and document["network_bytes_per_token"] == staged.sent == 3 * 2 * NUMBER
    seconds = {"5 GB/s": round(whole / 4 / 5e9), "1 GB/s": round(whole / 4 / 1e9)}
    assert document["start"] == {"read_bytes_per_node": whole // 4, "read_s": seconds}


def own(slower_s: float, layouts: tuple[Layout, ...] = (TP32,), loads: tuple[int, ...] = BATCHES) -> list[OwnPoint]:
    """As if each step of an engine took so many seconds more than the calculated one, whatever the load."""
    return [
        OwnPoint(layout=layout, requests=load, tokens_per_s=load / (load / of(layout)[load] + slower_s))
        for layout in layouts
        for load in loads
    ]


@pytest.mark.parametrize("slower_s", [0.0, 0.01])
def test_from_four_own_points_on_the_rest_is_fitted_to_them(slower_s: float) -> None:
    refitted = speeds(ARTICLES, PP4, own=own(slower_s, (TP32, PP4), (4, 32, 128)))
    calculated = of(PP4)
    assert dict(refitted.tokens_per_s) == pytest.approx({
        load: load / (load / tokens + slower_s) for load, tokens in calculated.items()
    })  # fmt: skip
    assert refitted.error < 1e-6 and "fitted to 6 points measured here" in refitted.basis


def uneven(share: float) -> list[OwnPoint]:
    """The third of four faster by this share."""
    first, second, third, last = own(0.01)
    return [first, second, replace(third, tokens_per_s=third.tokens_per_s * (1 + share)), last]


def test_the_error_is_that_of_the_point_which_the_others_predict_worst() -> None:
    refitted = speeds(ARTICLES, PP4, own=uneven(0.1))
    assert 0.05 < refitted.error < 1 and f"within {100 * refitted.error:.0f} %" in refitted.basis


@pytest.mark.parametrize(
    "points", [own(0.01)[:3], own(0.01, loads=(32, 32, 32, 128)), own(0.01, loads=(1,) * 5), uneven(0.5), []]
)
def test_where_they_are_too_few_or_on_no_line_the_articles_points_count(points: list[OwnPoint]) -> None:
    assert speeds(ARTICLES, PP4, own=points) == speeds(ARTICLES, PP4)
