"""`prepare --tags firewall` on nodes that boot systemd: strangers are kept out, the gang serves, all is undone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.small_lab import SmallLab, small_lab

from orchestrator.loading.inventory import load_inventory

from .conftest import PREPARED, needs_root

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    needs_root,
    PREPARED,
]
TABLE = "nft list table inet l40s_deploy 2>/dev/null || echo none"
OURS = "find /etc -name '*l40s-deploy*' | sort"


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("firewall", level=2) as made:
        yield made


@pytest.fixture(scope="module")
def before(lab: SmallLab) -> dict[str, str]:
    """Our files below /etc on each node, as nobody has prepared it."""
    return {node: lab.on(node, OURS) for node in lab.hosts()}


def prepare(lab: SmallLab, *words: str) -> dict[str, Any]:
    done = lab.deploy("prepare", *words, "--json", timeout=240)
    return {node["name"]: node["result"] for node in json.loads(done.stdout)["nodes"]}


def strange(lab: SmallLab, port: int) -> str:
    """What a host outside the gang gets from a port of node0; this machine is such a host."""
    try:
        socket.create_connection((lab.hosts()["node0"], port), timeout=2).close()
    except TimeoutError:
        return "dropped"
    except ConnectionRefusedError:
        return "refused"
    return "open"


def test_strangers_are_kept_out_and_the_gang_serves(lab: SmallLab, before: dict[str, str]) -> None:
    ports = load_inventory(lab.inventory).gangs[0].leader.ports
    assert strange(lab, ports.agent) == "refused"

    made = prepare(lab, "--tags", "firewall")
    assert all(result["changed"] for result in made.values())
    assert all("set gang" in lab.on(node, TABLE) for node in lab.hosts())
    assert strange(lab, ports.agent) == "dropped"
    again = prepare(lab, "--tags", "firewall")
    assert {node: result["changed"] for node, result in again.items()} == dict.fromkeys(lab.hosts(), 0)

    lab.serve()
    assert lab.gang()["state"] == "ready"
    assert strange(lab, ports.agent) == "dropped"
    assert strange(lab, ports.http) == "open"
    lab.deploy("down")

    if lab.running_level() == 2:
        lab.on("node0", "nft delete table inet l40s_deploy && systemctl restart l40s-deploy-firewall.service")
        assert "set gang" in lab.on("node0", TABLE), "as at boot"


@pytest.mark.turns(of="prepare: what it made by a tag is taken back")
def test_all_is_taken_back(lab: SmallLab, before: dict[str, str]) -> None:
    if all(lab.on(node, OURS) == before[node] for node in lab.hosts()):
        prepare(lab, "--tags", "firewall")
    prepare(lab, "--remove")
    assert {node: lab.on(node, TABLE).strip() for node in lab.hosts()} == dict.fromkeys(lab.hosts(), "none")
    assert {node: lab.on(node, OURS) for node in lab.hosts()} == before
    assert strange(lab, load_inventory(lab.inventory).gangs[0].leader.ports.agent) == "refused"
