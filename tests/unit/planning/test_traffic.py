"""Bytes between nodes per token, by layout, and a layout's cost for a start."""

from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.offers import offer
from orchestrator.planning.traffic import bytes_a_token
from orchestrator.protocol.layout import Layout
from orchestrator.workflows.plan.layouts import fit_words, layouts_json
from orchestrator.workflows.plan.models import costs_json

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
    fits = {str(fit.degrees): fit for fit in offer(STOCK, load_stack("sglang-0.5.23"), gang()).fits}
    grouped, plain = fits["TP32 with EP2 and attention DP4"], fits["TP32 with EP2"]
    assert grouped.sent * 2 == plain.sent
    assert grouped.degrees.flags == "--tp 32 --ep 2 --attn-dp 4"
    assert "in each of 4 groups" in fit_words(grouped)
    (document,) = layouts_json((grouped,))
    assert (document["tp"], document["ep"], document["attn_dp"]) == (32, 2, 4)
    assert "PP4 x TP8 with attention DP1" not in fits and "PP4 x TP8" in fits


def test_a_stage_a_node_reads_a_quarter_and_says_its_name() -> None:
    fits = {str(fit.degrees): fit for fit in offer(STOCK, load_stack("sglang-0.5.23"), gang()).fits}
    staged, spread = fits["PP4 x TP8"], fits["TP32 with EP2"]
    assert staged.name == "node-stages" and staged.sent * 100 < spread.sent
    whole = checkpoint_bytes(STOCK)
    assert (staged.read, spread.read) == (whole // 4, whole)
    assert costs_json(staged) == {
        "network_bytes_per_token": 3 * 2 * NUMBER,
        "start": {
            "read_bytes_per_node": whole // 4,
            "read_s": {"5 GB/s": round(whole / 4 / 5e9), "1 GB/s": round(whole / 4 / 1e9)},
        },
    }
    words = fit_words(staged)
    assert words.startswith("PP4 x TP8 (node-stages): ") and "86 kB per token between nodes" in words
    assert "tokens/s at 1 and 128 requests" in words and "at 5 GB/s" in words
    (document,) = layouts_json((staged,))
    assert (document["layout"], document["attn_dp"], document["pp"]) == ("node-stages", 1, 4)
    assert document["calculated"] and document["network_bytes_per_token"] == staged.sent
