"""What the product reads of RDMA ports, chooses and measures, held to real verbs. Run by `make rxe`."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rxe.machines import RAILS, Machines, machines
from tests.support.waiting import until

from orchestrator.doctor.steps.doctor import cluster_of
from orchestrator.doctor.steps.trials import try_ways
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import connected
from orchestrator.jobs.run import planned_requests
from orchestrator.loading.inventory import load_inventory
from orchestrator.model.topology import RdmaPort
from orchestrator.nettest.steps.ports import measure
from orchestrator.planning.steps.look import look
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.looks import Outcome
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build

FIGURES = os.environ.get("RXE_FIGURES", "")
pytestmark = [
    pytest.mark.rxe,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not FIGURES, reason="needs machines and a network namespace of its own: run `make rxe`"),
]
COUNT = int(os.environ.get("MACHINES", "2"))
DEVICES = [f"rxe{rail}" for rail in range(RAILS)]
MODEL = "tiny-deepseek-v3"
GID = re.compile(r"GID\[ *(\d+)\]:\s+([0-9a-f:.]+)(?:, (RoCE v[12]|IB/RoCE v1))?")


@pytest.fixture(scope="module")
def rxe() -> Iterator[Machines]:
    with machines(COUNT) as made:
        until(lambda: made.deploy("discover").returncode == 0, 300.0, "the application is on every machine")
        yield made


def ports(rxe: Machines) -> dict[str, dict[str, RdmaPort]]:
    """RDMA ports as the product reads them, by node and device."""
    nodes = tuple(load_inventory(rxe.inventory).nodes)
    with Fleet(nodes) as fleet:
        seen = look(fleet, nodes).all()
    return {name: {port.device: port for port in build(snapshot).rdma} for name, snapshot in seen.items()}


def devinfo(rxe: Machines, name: str) -> dict[str, dict[str, Any]]:
    """What ibv_devinfo says, by device."""
    found: dict[str, dict[str, Any]] = {}
    for block in rxe.on(name, "ibv_devinfo -v").split("hca_id:")[1:]:
        facts = dict(re.findall(r"^\s*(state|link_layer|active_mtu|port):\s+(\S+)", block, re.MULTILINE))
        gids = {int(index): gid for index, gid, _ in GID.findall(block)}
        found[block.split()[0]] = {**facts, "gids": gids}
    return found


def findings(rxe: Machines) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rxe.json("doctor")["findings"]
    return found


def plan(rxe: Machines) -> dict[str, dict[str, str]]:
    """Environment by node."""
    return {node["name"]: node["env"] for node in rxe.json("plan", "--model", MODEL)["nodes"]}


def test_ports_are_as_the_verbs_say(rxe: Machines) -> None:
    seen = ports(rxe)
    assert sorted(seen) == rxe.names
    for name in rxe.names:
        real = devinfo(rxe, name)
        assert sorted(seen[name]) == sorted(real) == DEVICES
        for device, port in seen[name].items():
            facts = real[device]
            assert (f"PORT_{port.state}", port.link_layer) == (facts["state"], facts["link_layer"])
            assert {gid.index: plain(gid.gid) for gid in port.gids} == facts["gids"]


def test_what_people_paste_of_ibv_devinfo_says_the_same(rxe: Machines) -> None:
    pasted = rxe.folder / "pasted.txt"
    pasted.write_text(rxe.on("rxe1", "ibv_devinfo -v"))
    (read,) = rxe.json("discover", "--from", str(pasted))["nodes"]
    (live, *_) = rxe.json("discover", "--node", "rxe1")["nodes"]
    told = ("device", "port", "state", "link_layer", "gid_index")
    assert [[port[key] for key in told] for port in read["rdma_ports"]] == [
        [port[key] for key in told] for port in live["rdma_ports"]
    ]


def test_the_plan_names_the_ports_and_the_index_of_their_common_network(rxe: Machines) -> None:
    for name, env in plan(rxe).items():
        assert env["NCCL_IB_HCA"] == "=rxe0:1,rxe1:1"
        assert "NCCL_IB_RESILIENCY_PORT_FAILOVER" not in env  # two devices, not two ports of a card
        indices = {facts["gids"][int(env["NCCL_IB_GID_INDEX"])] for facts in devinfo(rxe, name).values()}
        assert indices == {f"::ffff:10.77.{rail}.1{name[-1]}" for rail in (1, 2)}


def test_a_moved_index_is_followed_to_the_network_that_others_have(rxe: Machines) -> None:
    before = plan(rxe)
    for rail in (1, 2):
        ours = f"10.77.{rail}.12/24 dev eth{rail}"
        rxe.on("rxe2", f"ip addr del {ours}; ip addr add 192.168.{rail}.2/24 dev eth{rail}; ip addr add {ours}")
    after = plan(rxe)
    index = int(after["rxe2"]["NCCL_IB_GID_INDEX"])
    assert {facts["gids"][index] for facts in devinfo(rxe, "rxe2").values()} == {
        "::ffff:10.77.1.12",
        "::ffff:10.77.2.12",
    }
    assert after["rxe2"] != before["rxe2"]
    assert {name: env for name, env in after.items() if name != "rxe2"} == {
        name: env for name, env in before.items() if name != "rxe2"
    }


def test_a_link_that_is_down_is_named_and_forgotten_when_it_is_up(rxe: Machines) -> None:
    rxe.on("rxe2", "ip link set eth2 down")
    assert ports(rxe)["rxe2"]["rxe1"].state == devinfo(rxe, "rxe2")["rxe1"]["state"].removeprefix("PORT_") == "DOWN"
    down = [one for one in findings(rxe) if one["id"] == "RDMA-PORT-DOWN"]
    assert [one["node"] for one in down] == ["rxe2"] and down[0]["devices"] == ["rxe1"]
    rxe.on("rxe2", "ip link set eth2 up")
    until(lambda: ports(rxe)["rxe2"]["rxe1"].active, 30.0, "the port is ACTIVE again")
    assert not [one for one in findings(rxe) if one["id"] == "RDMA-PORT-DOWN"]


def test_rails_that_do_not_reach_each_other_are_found(rxe: Machines) -> None:
    """By our datagrams as by the verbs. With one GPU a node NCCL needs no such path, and no finding speaks of it."""
    specs = {node.name: node for node in load_inventory(rxe.inventory).nodes}
    with Fleet(specs.values()) as fleet:
        seen = look(fleet, list(specs.values())).all()
        topologies = {name: build(snapshot) for name, snapshot in seen.items()}
        trials = try_ways(fleet, cluster_of(specs.values(), topologies, seen))
    between = [one for one in trials if one.side in DEVICES and one.source != one.target]
    assert {one.outcome for one in between if not one.far} == {Outcome.OPEN}
    across = {one.outcome for one in between if one.far}
    assert across and across <= {Outcome.SILENT, Outcome.UNREACHABLE, Outcome.REFUSED}
    assert pingpong(rxe, "rxe0") and not pingpong(rxe, "rxe1")
    assert not [one for one in findings(rxe) if one["id"] == "RAILS-ISOLATED"]


def pingpong(rxe: Machines, there: str) -> bool:
    """Whether rxe0 of the first machine exchanges messages with this device of the second, by verbs alone."""
    index = {name: env["NCCL_IB_GID_INDEX"] for name, env in plan(rxe).items()}
    program = "timeout 40 ibv_rc_pingpong -n 10"
    rxe.on("rxe2", f"setsid {program} -d {there} -g {index['rxe2']} >/dev/null 2>&1 </dev/null &")
    told = rxe.on("rxe1", f"sleep 3; {program} -d rxe0 -g {index['rxe1']} 10.77.0.12 2>&1; echo ended $?")
    rxe.on("rxe2", "pkill ibv_rc_pingpong || true")
    return told.split()[-1] == "0"


def test_perftest_measures_every_pair_of_ports(rxe: Machines) -> None:
    """In rounds of partners, except from rail to rail: these are separate. Nothing is said of speed under emulation."""
    inventory = load_inventory(rxe.inventory)
    (gang,) = inventory.gangs
    with connected(inventory) as operation:
        planned, requests = planned_requests(operation, gang, PlanRequest(model=MODEL), run_id="nettest")
        with GangLock(operation.fleet, gang, "nettest"):
            measured = measure(operation.fleet, gang, requests, planned.topologies, enough=0.8)
    pairs = {(link.start.node, link.end.node, link.start.port) for link in measured.links}
    assert measured.note.startswith("measurements between different rails given up") and "separate" in measured.note
    assert len(pairs) == COUNT * (COUNT - 1) * RAILS, measured
    assert [link for link in measured.links if not link.gbps or link.best <= 0] == []
    Path(FIGURES).write_text(json.dumps({"machines": COUNT, "ports": COUNT * RAILS, "pairs": len(pairs)}))


def plain(gid: str) -> str:
    """As inet_ntop(3) writes it, which ibv_devinfo uses."""
    return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, gid))
