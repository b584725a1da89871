"""A gang that serves on nodes that boot systemd: seen by another inventory, and after all power was gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

from .conftest import LOSES_A_PART, needs_root

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    needs_root,
    LOSES_A_PART,
]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("powercut", level=2) as made:
        if made.json("lab", "status", "--name", made.name)["level"] != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        made.serve()
        yield made


@pytest.mark.turns
@pytest.mark.parametrize("proc", ["defaults", "hidepid=2"])
@pytest.mark.parametrize("other", [{"ansible_become": False}, {"l40s_state_dir": "/srv/other-state"}])
def test_another_inventory_neither_stops_nor_denies_what_serves(
    lab: SmallLab, proc: str, other: dict[str, Any]
) -> None:
    for node in lab.hosts():
        lab.on(node, f"mount -o remount,{proc} /proc")
    written = lab.inventory.read_text()
    document = yaml.safe_load(written)
    document["all"]["vars"] |= other
    lab.inventory.write_text(yaml.safe_dump(document))
    try:
        seen = lab.deploy("status", code=4)
        assert "gang0 unknown" in seen.stdout
        for verb in (("up", lab.model), ("restart",), ("down",), ("why",)):
            refused = lab.deploy(*verb, code=3)
            assert "its state in /var/lib/l40s-deploy as root" in refused.stderr, verb
            assert "that process" not in refused.stderr, verb
    finally:
        lab.inventory.write_text(written)
    assert lab.gang()["state"] == "ready"


def test_a_guard_has_the_gang_serving_again_once_its_nodes_are_back(lab: SmallLab) -> None:
    before = lab.gang()
    for node in lab.hosts():
        lab.run("break", node, "power-off")
    assert lab.deploy("status", code=None).returncode == 4
    watching = lab.start("guard")  # its unit starts at boot, and the controller boots before the nodes
    try:
        for node in lab.hosts():
            lab.run("heal", node)
        until(lambda: lab.gang()["state"] == "ready" or watching.poll() is not None, 60.0, "the gang serves again")
    finally:
        watching.send_signal(signal.SIGINT)
        said = watching.communicate(timeout=60)[0]
    after = lab.gang()
    assert after["state"] == "ready", said
    assert after["plan_id"] == before["plan_id"] and after["run_id"] != before["run_id"]
    assert lab.deploy("status", code=None).returncode == 0
    assert "rebooted" in lab.deploy("why").stdout
