"""`prepare --bundle` on the router's host: its environment comes from a file, on a node that reaches no index."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.support.small_lab import small_lab
from tests.support.wheels import wheel

from orchestrator.engines.router import VERSION
from orchestrator.hosts.steps.bundle import write_bundle
from orchestrator.hosts.steps.stack import ROUTER_STACK

from .conftest import needs_root

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600), needs_root]


@pytest.mark.long
def test_the_router_s_host_is_prepared_from_its_bundle(tmp_path: Path) -> None:
    show = 'import sys; print("%d.%d" % sys.version_info[:2])'
    python = subprocess.run(["/usr/bin/python3", "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "smg", VERSION)
    lock = f"smg=={VERSION}\n"
    folders = {"wheels": wheels}
    bundle = write_bundle(tmp_path / "router.bundle", ROUTER_STACK, python=python, lock=lock, folders=folders).path
    with small_lab("routerbundle", nodes=1) as lab:
        lab.write_inventory(router={"hosts": {"node0": None}, "vars": {"l40s_router_venv": "/opt/l40s/venvs/r"}})
        words = ("prepare", "--bundle", str(bundle), "--tags", "router_env", "--node", "node0")
        lab.deploy(*words, timeout=400)
        printed = lab.on("node0", "/opt/l40s/venvs/r/bin/python -c 'import smg; print(smg.VERSION)'")
        assert printed.strip() == VERSION
        assert "node0: changed=0 " in lab.deploy(*words, timeout=400).stdout
