"""`certify` with the stand-in on two emulated nodes: to its end, and what it leaves; with wrong data: tests/engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support import proven
from tests.support.small_lab import small_lab

from orchestrator.support.steps.certify import STEPS

from .conftest import needs_root

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), needs_root]


def test_the_stand_in_is_certified_as_what_it_is(tmp_path: Path) -> None:
    out = tmp_path / "certificate.json"
    with small_lab(f"certify-{os.getpid()}", nodes=2) as lab:
        words = ("certify", "gang0", "--model", lab.model, "--out", str(out))
        asked = lab.deploy(*words, check=False)
        assert asked.returncode == 2 and "kill one of its ranks" in asked.stderr and "use --yes" in asked.stderr
        assert not out.exists() and lab.gang()["state"] == "absent"
        done = lab.deploy(*words, "--yes", check=False, timeout=600)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "say nothing about a GPU" in done.stdout
        document = json.loads(out.read_text())
        steps = {one["name"]: one for one in document["steps"]}
        verdicts = {name: one["verdict"] for name, one in steps.items()}
        untried = {"stack check", "nettest"}  # the stand-in has no torch
        assert verdicts == {name: "not-run" if name in untried else "ok" for name in STEPS}
        assert document["complete"] and document["stand_in"] is True and document["verdict"] == "not-run"
        assert {row["requests"] for row in steps["bench"]["result"]["decode"]} == {1, 4, 32, 128}
        cause = steps["kill"]["result"]["cause"]
        assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("machine2", 3, 9)
        with pytest.raises(ValueError, match="nobody knows that its engine was real"):
            proven.take(document)
        for name, address in lab.hosts().items():
            assert name not in out.read_text() and f'"{address}' not in out.read_text()
        assert not lab.engine_processes() and lab.gang()["state"] == "absent"
