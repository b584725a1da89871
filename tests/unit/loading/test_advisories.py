"""Published vulnerabilities in the stacks' files: complete, dated, matching the stack's versions, documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines.registry import engine_of
from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.model.errors import InputError

STACK = "name: s\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\n"


@pytest.mark.parametrize("name", stack_names())
def test_each_is_dated_sourced_and_of_a_version_that_the_stack_has(name: str) -> None:
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
        ("looked_up: yesterday\n", "looked_up"),
        ("advisories: {X: {package: a, what: b, when: c, source: d, published: soon}}\n", "advisories.X.published"),
        ("advisories: {X: {package: a, what: b, when: c}}\n", "advisories.X.source"),
        ("advisories: {X: {package: a, what: b, when: c, source: d, cvss: e}}\n", "advisories.X.cvss"),
        ("advisories: [X]\n", "advisories"),
    ],
)
def test_a_wrong_one_is_refused_by_its_place(tmp_path: Path, more: str, where: str) -> None:
    file = tmp_path / "s.yml"
    file.write_text(STACK + more)
    with pytest.raises(InputError) as refused:
        load_stack(str(file))
    assert refused.value.where == f"{file}: {where}"
