"""All power fails at once and comes back: nodes boot from their disks, and a guard does the rest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes that boot systemd need root"),
]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("powercut", level=2) as made:
        if made.json("lab", "status", "--name", made.name)["level"] != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        made.serve()
        yield made


def test_a_guard_has_the_gang_serving_again_once_its_nodes_are_back(lab: SmallLab) -> None:
    before = lab.gang()
    for node in lab.hosts():
        lab.deploy("lab", "break", node, "power-off", "--name", lab.name)
    assert lab.deploy("status", check=False).returncode == 4
    watching = lab.start("guard")  # its unit starts at boot, and the controller boots before the nodes
    try:
        for node in lab.hosts():
            lab.deploy("lab", "heal", node, "--name", lab.name)
        until(lambda: lab.gang()["state"] == "ready" or watching.poll() is not None, 60.0, "the gang serves again")
    finally:
        watching.send_signal(signal.SIGINT)
        said = watching.communicate(timeout=60)[0]
    after = lab.gang()
    assert after["state"] == "ready", said
    assert after["plan_id"] == before["plan_id"] and after["run_id"] != before["run_id"]
    assert lab.deploy("status", check=False).returncode == 0
    assert "rebooted" in lab.deploy("why").stdout
