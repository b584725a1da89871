"""Stacks: the shipped ones load and suit their engine adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines.registry import engine_of
from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.model.errors import InputError

STACK = "name: s\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\n"


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


@pytest.mark.parametrize("name", stack_names())
def test_each_advisory_is_dated_sourced_and_of_a_version_that_the_stack_has(name: str) -> None:
    stack = load_stack(name)
    assert stack.looked_up and stack.advisories
    versions = {engine_of(stack).package: stack.engine_version, "torch": stack.torch_version}
    for one in stack.advisories:
        package, _, version = one.package.partition(" ")
        assert versions[package] == version, f"{one.id}: look it up again for the new version"
        assert "2020" < one.published <= stack.looked_up
        assert one.source.startswith("https://") and one.what and one.when


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ("environment: {}\n", "environment"),
        ("looked_up: yesterday\n", "looked_up"),
        ("advisories: {X: {package: a, what: b, when: c, source: d, published: soon}}\n", "advisories.X.published"),
        ("advisories: {X: {package: a, what: b, when: c}}\n", "advisories.X.source"),
        ("advisories: {X: {package: a, what: b, when: c, source: d, cvss: e}}\n", "advisories.X.cvss"),
        ("advisories: [X]\n", "advisories"),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(tmp_path: Path, more: str, where: str) -> None:
    file = tmp_path / "s.yml"
    file.write_text(STACK + more)
    with pytest.raises(InputError) as refused:
        load_stack(str(file))
    assert refused.value.where == f"{file}: {where}"


def test_a_version_that_yaml_takes_for_a_number_is_told(tmp_path: Path) -> None:
    file = tmp_path / "s.yml"
    file.write_text(STACK.replace("0.5.23", "0.5"))
    with pytest.raises(InputError, match=r"found 0\.5, wanted text"):
        load_stack(str(file))
