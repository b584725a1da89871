"""Published vulnerabilities in the stacks' files: complete, dated, matching the stack's versions, documented."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.loading.stacks import load_stack, stack_names
from orchestrator.model.errors import InputError

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
STACK = "name: s\nsource: x\ndialect: sglang-0.5\nengine_version: 0.5.23\n"


@pytest.mark.parametrize("name", stack_names())
def test_each_is_dated_sourced_and_of_a_version_that_the_stack_has(name: str) -> None:
    stack = load_stack(name)
    assert stack.looked_up and stack.advisories
    versions = {"sglang": stack.engine_version, "torch": stack.torch_version}
    for one in stack.advisories:
        package, _, version = one.package.partition(" ")
        assert versions[package] == version, f"{one.id}: look it up again for the new version"
        assert "2020" < one.published <= stack.looked_up
        assert one.source.startswith("https://") and one.what and one.when


def test_the_page_has_them_all() -> None:
    rows = ["| id | published | in | what an attacker can do | when it matters |", "|---|---|---|---|---|"]
    found: dict[str, list[str]] = {}
    for name in stack_names():
        for one in load_stack(name).advisories:
            shown = f"[{one.id}]({one.source})"
            found.setdefault(f"| {shown} | {one.published} | {{}} | {one.what} | {one.when} |", []).append(one.package)
    rows += sorted(row.format(", ".join(dict.fromkeys(packages))) for row, packages in found.items())
    text = PAGE.read_text()
    block = re.search(r"<!-- advisories -->\n(.*?)<!-- /advisories -->", text, re.DOTALL)
    assert block is not None
    wanted = "\n".join(rows) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(text[: block.start(1)] + wanted + text[block.end(1) :])
        return
    assert block[1] == wanted, "UPDATE_GOLDEN=1 writes the table anew"


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
