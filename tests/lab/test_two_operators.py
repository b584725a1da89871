"""Two operators restart a gang each, at once, behind the real router: the second one waits, and no request is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.support.load import Load
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import MODEL, SmallLab
from tests.support.waiting import until

from .conftest import BEHIND_ONE_ROUTER, needs_root, routed_lab

pytestmark = [pytest.mark.lab, needs_root, BEHIND_ONE_ROUTER]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with routed_lab("operators", gangs=2, nodes=1) as made:
        made.serve()
        yield made


@pytest.mark.turns(of="rolling: no request fails while gangs change")
def test_two_restarts_at_once_lose_nothing(lab: SmallLab) -> None:
    before = {gang["name"]: gang["run_id"] for gang in lab.json("status")["gangs"]}
    claim = lab.folder / "router/gangs/turn.all/lock"
    with Load(lab.router_url, MODEL, clients=3, pause_s=0.1) as load:
        words = [*L40S_DEPLOY, "restart", "gang1"]
        with subprocess.Popen(words, env=lab.environment, stdout=subprocess.DEVNULL) as first:
            until(claim.exists, 60.0, "the first one has its turn")
            second = lab.deploy("restart", "gang0")
        assert first.returncode == 0
    assert "gang0: waiting: " in second.stderr and "restart gang1`" in second.stderr, second.stderr
    assert load.bad == [] and load.good > 20
    after = lab.json("status")["gangs"]
    assert [gang["state"] for gang in after] == ["ready"] * 2
    assert all(gang["run_id"] != before[gang["name"]] for gang in after)
    assert not claim.exists()
