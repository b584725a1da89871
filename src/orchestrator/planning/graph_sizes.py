"""Batch sizes whose decode an engine is told to capture as CUDA graphs, and where it would have none left. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.engines.engine import Engine
from orchestrator.model.profile import ModelProfile
from orchestrator.planning.memory import asked_of
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout


def refuse(
    engine: Engine, profile: ModelProfile, layout: Layout, flags: Mapping[str, tuple[str, ...]], where: str
) -> None:
    """Raises InputError where every batch size that is asked for is one that this engine leaves out: with graphs on and
    none to capture, it ends at its start.

    SGLang 0.5: model_executor/runner/base_cuda_graph_runner.py (get_batch_sizes_to_capture asserts that one is left).
    flags: as `planning.engine_command.asked` gives them
    """
    asked = asked_of(profile, layout, flags, None)
    largest = engine.largest_graph(asked) if engine.largest_graph is not None else 0
    if largest == 0 or engine.memory(asked).graphs:
        return
    step = engine.graph_step(asked)
    raise InputError(
        f"CUDA graphs are asked for batches up to {largest}, and at {layout} their sizes are multiples of {step} (the"
        " ranks that share a batch): none is left, and the engine would end at its start",
        where=where,
        fix=f"ask for {step} or a multiple of it: `-- {engine.names.cuda_graph_max_bs} {step}` at the end of the"
        " command, in place of the other size",
    )
