"""The plan's static fraction and chunk against what the sources of each version resolve (resolved.json).

tests/engine/test_memory.py writes that file, and runs the version of the lab's engine itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engine.test_memory import RESOLVED, STACK, in_version

from orchestrator.loading.profiles import load_stack, stack_names

RECORDED = json.loads(RESOLVED.read_text("utf-8"))
KIT = Path(__file__).parents[2] / "gpu/kit/sglang-0.5.17-triton.yml"


@pytest.mark.parametrize("version", RECORDED)
def test_fraction_and_chunk_are_the_engines(version: str) -> None:
    plans = {words: plan for words, (_, plan) in in_version(version).items() if words in RECORDED[version]}
    assert len(plans) == len(RECORDED[version]) > 50
    wrong = {}
    for words, plan in plans.items():
        engine, memory = RECORDED[version][words], plan.memory
        chunk = f"prefills {engine['chunk']:,} tokens at once"
        if memory.static_fraction != pytest.approx(engine["fraction"], abs=0.0005) or (
            plan.layout.attention_data_parallel > 1 and chunk not in memory.explanation[-1]
        ):
            wrong[words] = (memory.static_fraction, memory.explanation[-1], engine)
    assert wrong == {}


def test_every_version_that_a_stack_or_the_gpu_kit_names_is_compared() -> None:
    stacks = [load_stack(name) for name in (*stack_names(), str(KIT))]
    named = {stack.engine_version for stack in stacks if stack.dialect == STACK.dialect}
    assert named <= {STACK.engine_version, *RECORDED}
