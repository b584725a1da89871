"""Stacks: the shipped ones load and suit their engine adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines.registry import engine_of
from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.model.errors import InputError


@pytest.mark.parametrize("name", stack_names())
def test_every_shipped_stack_loads_and_its_flags_are_known_to_its_version(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    assert stack.tested
    words = [word for pair in stack.flags for word in pair if word]
    engine_of(stack).flags().given(words, where=name)


def test_the_five_stacks_are_there() -> None:
    on_cpu = {"sglang-0.5.23-cpu", "vllm-0.32.0-cpu"}
    assert set(stack_names()) == {"sglang-0.4.4-l40s", "sglang-0.5.23", "vllm-0.33.0", *on_cpu}
    assert {name for name in stack_names() if load_stack(name).device == "cpu"} == on_cpu


def test_an_unknown_stack_brings_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_stack("sglang-0.5")
    assert "sglang-0.5.23" in caught.value.fix


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.yml"
    file.write_text("name: s\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\nenvironment: {}\n")
    with pytest.raises(InputError) as caught:
        load_stack(str(file))
    assert caught.value.where == f"{file}: environment"


def test_a_version_that_yaml_takes_for_a_number_is_told(tmp_path: Path) -> None:
    file = tmp_path / "s.yml"
    file.write_text("name: s\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5\n")
    with pytest.raises(InputError, match=r"found 0\.5, wanted text"):
        load_stack(str(file))
