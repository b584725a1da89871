"""The real SGLang, from an index to an answer: built into a bundle, installed by `prepare`, started by `up`.

The nodes boot systemd and reach no network. The lab's own copy of the engine is not used: the stack is in a separate
directory. Run by `make prepared`: it fetches a gigabyte, and unpacks five.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.load import complete
from tests.support.small_lab import ENGINE_MODEL, SmallLab, small_lab

from l40s_lab.engine.environment import ENGINE_STACK
from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.installs,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes that boot systemd need root"),
]

VENV = "/opt/l40s/venvs/prepared"
BUILD_S = 1200.0
INSTALL_S = 1200.0
UP_S = 400.0
PACKAGES = "rsync,libnuma1"
"""Debian packages: every stack brings the interpreter's own."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    """Two nodes whose inventory wants the stack where nothing is installed yet."""
    with small_lab("prepared", level=2, engine="sglang") as lab:
        if lab.running_level() != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        lab.write_inventory(vars={"l40s_venv": VENV, "system_packages_wanted": PACKAGES.split(",")})
        yield lab


def test_built_installed_served_and_taken_back(lab: SmallLab) -> None:
    bundle = lab.folder / "stack.bundle"
    lab.deploy("stack", "build", ENGINE_STACK, "--out", str(bundle), "--debian", PACKAGES, timeout=BUILD_S)
    refused = lab.deploy("up", "--model", ENGINE_MODEL, code=None)
    assert refused.returncode != 0, "there is no engine yet"
    assert "prepare" in refused.stdout + refused.stderr

    first = prepare(lab, "--bundle", str(bundle))
    assert all(node["result"]["changed"] > 0 for node in first.values()), first
    second = prepare(lab, "--bundle", str(bundle))
    assert {name: node["result"]["changed"] for name, node in second.items()} == dict.fromkeys(lab.hosts(), 0)

    lab.deploy("up", "--model", ENGINE_MODEL, timeout=UP_S)
    gang = lab.gang()
    assert gang["state"] == "ready"
    for node in lab.hosts():
        pid = next(rank["pid"] for seen in gang["nodes"] if seen["name"] == node for rank in seen["ranks"])
        assert VENV in lab.on(node, f"tr '\\0' '\\n' </proc/{pid}/environ; grep -o '{VENV}[^ ]*' /proc/{pid}/maps")
    assert complete(gang["service"]["url"], ENGINE_MODEL, CANARY_PROMPT, len(CANARY_TEXT)) == CANARY_TEXT

    lab.deploy("down", timeout=120)
    assert not lab.engine_processes()
    prepare(lab, "--remove")
    assert not any(lab.on(node, f"ls -d {VENV} 2>/dev/null || true") for node in lab.hosts())


def prepare(lab: SmallLab, *words: str) -> dict[str, dict[str, Any]]:
    """`prepare` on all nodes, by name."""
    stack = () if "--remove" in words else ("--stack", ENGINE_STACK)
    done = lab.deploy("prepare", *stack, *words, "--json", timeout=INSTALL_S)
    return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}
