"""Batch sizes of CUDA graphs that an engine would leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.planning import graph_sizes
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

MODEL = load_profile("DeepSeek-V3-0324-Block64x64")
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
GROUPS = replace(TP32, attention_data_parallel=4)
MOST, SIZES = "--cuda-graph-max-bs-decode", "--cuda-graph-bs-decode"


@pytest.mark.parametrize(
    ("stack", "layout", "flags", "refused"),
    [
        ("sglang-0.5.23", TP32, {MOST: ("4",)}, False),
        ("sglang-0.5.23", GROUPS, {MOST: ("4",)}, True),
        ("sglang-0.5.23", GROUPS, {MOST: ("8",)}, False),
        ("sglang-0.5.23", GROUPS, {SIZES: ("1", "2", "4")}, True),
        ("sglang-0.5.23", GROUPS, {SIZES: ("1", "2", "16")}, False),
        ("sglang-0.5.23", GROUPS, {MOST: ("4",), "--disable-decode-cuda-graph": ()}, False),
        ("sglang-0.5.23", GROUPS, {}, False),
        ("sglang-0.4.4-l40s", GROUPS, {"--cuda-graph-max-bs": ("4",)}, False),
        ("vllm-0.33.0", GROUPS, {}, False),
    ],
)
def test_sizes_that_leave_nothing_to_capture_are_refused(
    stack: str, layout: Layout, flags: dict[str, tuple[str, ...]], refused: bool
) -> None:
    engine = engine_of(load_stack(stack))
    if not refused:
        graph_sizes.refuse(engine, MODEL, layout, flags, "gang0")
        return
    with pytest.raises(InputError, match="multiples of 8") as wrong:
        graph_sizes.refuse(engine, MODEL, layout, flags, "gang0")
    assert "--cuda-graph-max-bs-decode 8" in wrong.value.fix
