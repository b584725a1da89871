"""A layout's words."""

from __future__ import annotations

import pytest

from orchestrator.protocol.layout import Layout


@pytest.mark.parametrize(
    ("layout", "key", "words"),
    [
        (Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8), "TP32", "TP32"),
        (
            Layout(tensor_parallel=8, pipeline_parallel=4, expert_parallel=8, nnodes=4, gpus_per_node=8),
            "TP8 PP4 EP8",
            "PP4 x TP8 with EP8",
        ),
        (Layout(tensor_parallel=8, attention_data_parallel=2, nnodes=1, gpus_per_node=8), "TP8 DP2",
         "TP8 with attention DP2"),
    ],
)  # fmt: skip
def test_a_layout_in_words(layout: Layout, key: str, words: str) -> None:
    assert (layout.key, str(layout)) == (key, words)
    assert Layout.read(layout.as_json()) == layout
