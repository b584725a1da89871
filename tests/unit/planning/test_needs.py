"""What graphs and activations cost a rank, held to every start of the slice on GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.planning.test_memory import CPU, FINE, GRAPHS_32, IN_FOUR, NEW, OLD, PP4, SLICE, STOCK, TP32, of

from orchestrator.engines.engine import MemoryAsked
from orchestrator.engines.registry import engine_of
from orchestrator.planning.needs import GIB, UNMEASURED, tokens_at, with_seen
from orchestrator.protocol.planned import Layout

RESULTS = json.loads((Path(__file__).parents[2] / "slice/figures.json").read_text())["results"]
NO_GRAPHS = {"--disable-cuda-graph": ()}


def captured(
    stack: Any, *, groups: int = 1, whole_dense: bool = False, **flags: tuple[str, ...]
) -> tuple[int, ...] | None:
    spelled = {f"--{name.replace('_', '-')}": values for name, values in flags.items()}
    layout = replace(TP32, attention_data_parallel=groups)
    asked = MemoryAsked(flags=spelled, layout=layout, gpu_mib=46068, mla=True, whole_dense=whole_dense)
    found: tuple[int, ...] | None = engine_of(stack).memory(asked).graphs
    return found


def starts(*wanted: str) -> list[Any]:
    """Of all recorded starts of several ranks those that have these figures.

    One rank alone has no all-reduce in its graphs: they took 0.16 and 0.56 GiB instead of 0.4 and 1.0.
    """
    told = [
        (
            result,
            {
                **result["figures"],
                **result["figures"].get("engine", {}),
                **result["figures"].get("memory", {}),
                "version": result["engine"].split()[1],
            },
        )
        for result in RESULTS
        if not result["step"].startswith("one rank")
    ]
    return [
        pytest.param(result["step"], seen, id=f"{result['step']}, {result['at']}")
        for result, seen in told
        if all(name in seen for name in wanted)
    ]


def budget_of(step: str, seen: dict[str, Any], *off: str) -> Any:
    most = step.rpartition(" ")[2]
    chunk = str(int(seen["chunk"]))
    flags = {"--cuda-graph-max-bs-decode": (most,), "--chunked-prefill-size": (chunk,), **dict.fromkeys(off, ())}
    layout = Layout(tensor_parallel=4, nnodes=1, gpus_per_node=4)
    return of(replace(NEW, engine_version=seen["version"]), layout, flags, profile=SLICE, context=163_840)


@pytest.mark.parametrize(("step", "seen"), starts("graphs_gib"))
def test_graphs_take_what_every_start_of_the_slice_said(step: str, seen: dict[str, Any]) -> None:
    assert budget_of(step, seen).graph_bytes / GIB == pytest.approx(max(seen["graphs_gib"]), rel=0.04, abs=0.06)


@pytest.mark.parametrize(("step", "seen"), starts("least_free_gib", "after_pool_gib"))
def test_no_load_of_the_slice_took_more_than_is_called_needed(step: str, seen: dict[str, Any]) -> None:
    """What was free after the KV pool, less the least that was ever free; the table is made with the pool."""
    found = budget_of(step, seen)
    took = (min(seen["after_pool_gib"]) - seen["least_free_gib"]) * GIB + found.request_table
    assert 0 <= found.needed - UNMEASURED - took < 1.1 * GIB


@pytest.mark.parametrize(("step", "seen"), starts("prefill_graphs_gib", "least_free_gib"))
def test_where_prefill_is_captured_its_graphs_are_called_needed(step: str, seen: dict[str, Any]) -> None:
    """What is proposed for a fraction keeps them free; without them the same budget is said to need less."""
    found = budget_of(step, seen)
    assert any("prefill graphs and activations of chunks of 4,096 tokens" in line for line in found.explanation)
    eager = budget_of(step, seen, "--disable-prefill-cuda-graph")
    assert found.needed - eager.needed > max(seen["prefill_graphs_gib"]) * GIB / 2


def test_the_batch_sizes_are_those_that_the_engines_capture() -> None:
    """The lists of the slice's logs, and SGLang's own rules."""
    assert captured(NEW, cuda_graph_max_bs_decode=("32",)) == (1, 2, 4, 8, 12, 16, 24, 32)
    assert captured(NEW, cuda_graph_max_bs_decode=("128",)) == (1, 2, 4, 8, 12, *range(16, 129, 8))
    assert captured(NEW, cuda_graph_max_bs_decode=("30",)) == (1, 2, 4, 8, 12, 16, 24, 30)
    assert captured(NEW, cuda_graph_bs_decode=("64", "1")) == (1, 64)
    assert captured(NEW, disable_cuda_graph=()) == captured(OLD, disable_cuda_graph=()) == ()
    assert captured(NEW, cuda_graph_max_bs_decode=("9",), disable_cuda_graph_padding=()) == tuple(range(1, 10))
    drafted = captured(NEW, cuda_graph_max_bs_decode=("12",), speculative_algorithm=("EAGLE",))
    assert drafted == (*range(1, 9), 10, 12)
    assert captured(OLD, cuda_graph_max_bs=("32",)) == (1, 2, 4, 8, 16, 24, 32)
    assert len(captured(OLD) or ()) == 23, "the articles' 2.02 GB"
    assert captured(OLD, cuda_graph_bs=("64", "8", "200")) == (8, 64)


def test_where_ranks_share_out_tokens_graphs_are_of_multiples_of_these_ranks() -> None:
    """get_batch_sizes_to_capture of 0.5.10, 0.5.17 and 0.5.23; 0.4.4 has no such rule."""
    assert captured(NEW, groups=4, cuda_graph_max_bs_decode=("32",)) == (8, 16, 24, 32)
    assert captured(NEW, groups=4, cuda_graph_max_bs_decode=("30",)) == (8, 16, 24)
    assert captured(NEW, groups=4, cuda_graph_bs_decode=("4", "8", "12")) == (8,)
    assert captured(NEW, groups=32, cuda_graph_max_bs_decode=("12",)) == (1, 2, 4, 8, 12)
    assert captured(NEW, whole_dense=True, cuda_graph_max_bs_decode=("64",)) == (32, 64)
    drafted = captured(
        NEW,
        groups=4,
        cuda_graph_max_bs_decode=("8",),
        speculative_algorithm=("EAGLE",),
        speculative_num_draft_tokens=("4",),
    )
    assert drafted == (2, 4, 6, 8), "two requests have the eight tokens of a group's ranks"
    assert captured(OLD, groups=4, cuda_graph_max_bs=("16",)) == (1, 2, 4, 8, 16)


def test_no_graph_is_for_more_requests_than_may_run_in_a_group() -> None:
    alone = captured(NEW, cuda_graph_max_bs_decode=("32",), max_running_requests=("20",))
    assert alone == (1, 2, 4, 8, 12, 16, 20)
    assert captured(NEW, groups=2, cuda_graph_max_bs_decode=("32",), max_running_requests=("20",)) == (16,)


def test_a_plan_says_what_graphs_cost_and_that_larger_batches_run_eager() -> None:
    stack = replace(NEW, engine_version="0.5.17")
    (costs, beyond, needed, more) = of(stack, context=163_840).explanation[-4:]
    assert "8 batch sizes up to 32: about 0.44 GiB of the reserve, 11 to 16 s of a start, 120 to 155 s more" in costs
    assert costs.endswith("(calculated from the slice of DeepSeek-V3 on 2 and 4 H100 by SGLang 0.5.17)")
    assert beyond == "more than 32 requests at once run eager: the host launches each kernel of their steps"
    assert "1.25 (request table) + 0.44 (decode graphs) + 2.00 (activations of chunks of 4,096 tokens) + 1.50" in needed
    assert "-- --mem-fraction-static 0.88" in more and more.endswith("(calculated, not measured on 32 ranks)")
    assert "articles' log" in next(
        line for line in of(OLD, flags={}).explanation if line.startswith("decode graphs: 23")
    )
    assert "every batch runs eager" in of(flags=NO_GRAPHS).explanation[-2]
    grouped = of(layout=IN_FOUR, flags=GRAPHS_32, profile=FINE).explanation
    assert any(line.startswith("more than 128 requests at once, 32 for each of 4 batches, run") for line in grouped)


def test_the_default_fraction_stays_and_the_next_one_is_only_proposed() -> None:
    found = of(context=163_840)
    assert found.static_fraction == 0.732 and found.next_fraction > 0.82
    assert found.next_kv_tokens == tokens_at(found, found.next_fraction)
    taken = of(flags={**GRAPHS_32, "--mem-fraction-static": (str(found.next_fraction),)}, context=163_840)
    assert taken.kv_tokens == pytest.approx(found.next_kv_tokens, abs=2) and taken.next_fraction is None
    assert 0 <= taken.reserve - taken.needed < 0.05 * GIB
    limited = of(flags={**GRAPHS_32, "--max-total-tokens": ("1000",)}, context=163_840)
    assert limited.next_fraction is None


@pytest.mark.parametrize(
    ("layout", "profile", "flags"),
    [
        (IN_FOUR, FINE, {}),
        (PP4, STOCK, {}),
        (TP32, FINE, {"--speculative-algorithm": ("EAGLE",)}),
        (replace(TP32, tensor_parallel=64, nnodes=8), FINE, {}),
    ],
)
def test_what_was_measured_of_other_shapes_says_nothing_here(layout: Layout, profile: Any, flags: Any) -> None:
    found = of(layout=layout, profile=profile, flags={**GRAPHS_32, **flags}, context=163_840)
    assert (found.graph_bytes, found.needed, found.next_fraction) == (None, None, None)
    assert found.graphs and any("not measured for such a rank" in line for line in found.explanation)


def test_what_was_seen_free_proposes_the_next_fraction_in_the_calculated_ones_place() -> None:
    calculated: Any = of(context=163_840)
    assert with_seen(calculated, None) == calculated
    seen: Any = with_seen(calculated, int(6.2 * GIB))
    base = calculated.reserve / (1 - calculated.static_fraction)
    assert seen.next_fraction == pytest.approx(0.732 + 5.2 * GIB / base, abs=0.0011)
    assert seen.next_kv_tokens - seen.kv_tokens == pytest.approx(5.2 * GIB / 70_272, rel=0.02), "some 75,000 tokens"
    (words,) = (line for line in seen.explanation if "mem-fraction" in line)
    assert (
        words.startswith("measured on these nodes with this plan: at least 6.20 GiB")
        and "loads that were seen" in words
    )
    enough: Any = with_seen(calculated, int(1.2 * GIB))
    assert enough.next_fraction is None and enough.explanation[-1].endswith("at least 1.20 GiB of each GPU stayed free")
    fuller: Any = with_seen(calculated, 0)
    assert fuller.next_fraction < calculated.static_fraction, "less than is kept free was seen"
    assert with_seen(of(CPU, gpu_total=None), GIB) == of(CPU, gpu_total=None)
