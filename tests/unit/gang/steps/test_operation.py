"""How often a command connects each node: an operator waits for every login, and a node behind a slow one for long."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.commands import restart
from tests.support.local_gang import LocalGang, Notes

from orchestrator.cli.main import main
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.model.inventory import NodeSpec
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.local import connect
from orchestrator.remote.session import Connection

NODES = ("node0", "node1")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Two nodes that are this machine, each with a state folder of its own."""
    reach = f"ansible_connection: local, ansible_host: localhost, ansible_python_interpreter: {sys.executable}"
    hosts = "".join(f"        {name}: {{{reach}, l40s_state_dir: {tmp_path / name}}}\n" for name in NODES)
    file = tmp_path / "hosts.yml"
    file.write_text(f"gangs:\n  children:\n    gang0:\n      hosts:\n{hosts}")
    return file


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """By node, how often it was connected."""
    counted = Counter[str]()
    monkeypatch.setattr("orchestrator.remote.fleet._left", {})  # none handed over by another test

    def counting(spec: NodeSpec, deadline_s: float) -> Connection:
        counted[spec.name] += 1
        return connect(spec, deadline_s)

    monkeypatch.setattr("orchestrator.remote.fleet.connect", counting)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))
    return counted


@pytest.mark.processes
def test_a_restart_that_waits_for_nobody_keeps_its_connections(
    local: Callable[..., LocalGang], monkeypatch: pytest.MonkeyPatch
) -> None:
    gang, left = local(), list[str]()
    gang.up()
    monkeypatch.setattr(Fleet, "let_go", lambda fleet: left.extend(fleet.nodes))
    (view,) = restart(gang.inventory, RestartRequest(now=True, timeout_s=60.0), Notes()).views
    assert view.serves and left == []


@pytest.mark.processes
@pytest.mark.parametrize("command", ["doctor --report {page}", "status --wide"])
def test_a_command_connects_each_node_once(
    command: str, inventory: Path, connections: Counter[str], tmp_path: Path
) -> None:
    words = command.format(page=tmp_path / "page.html").split()
    main([*words, "--inventory", str(inventory)])
    assert connections == Counter(NODES)
