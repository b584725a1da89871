"""The ports that a gang listens on, and the rules that close them to strangers, loaded by the real nft."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang
from tests.support.reference_plan import plan_of

from orchestrator.model.inventory import GangPorts
from orchestrator.model.plan import GangPlan
from orchestrator.planning.ports import GANG, firewall, nftables, port_uses


def planned(**settings: Any) -> GangPlan:
    return plan_of(gang(**settings)).gangs[0]


def test_the_leader_listens_on_more_and_every_row_says_who_may_and_how_it_knows_them() -> None:
    plan = planned()
    rows = port_uses(plan)
    leader = {row.purpose: row for row in rows if row.node == plan.nodes[0].name}
    worker = {row.purpose: row for row in rows if row.node == plan.nodes[1].name}
    assert leader["rendezvous"].port == plan.dist_init.rpartition(":")[2]
    assert leader["agents"].port == str(plan.leader.leader.port)
    assert leader["agents"].authenticates != "nobody"
    assert {"rendezvous", "agents"}.isdisjoint(worker)
    assert leader["HTTP"].who != GANG == worker["HTTP, health only"].who
    assert {row.authenticates for row in rows if "pickle" in row.purpose} == {"nobody"}
    assert leader["HTTP"].authenticates == "nobody"
    keyed = replace(plan, nodes=tuple(replace(node, api_key="abc") for node in plan.nodes))
    assert port_uses(keyed)[0].authenticates == "the API key"


def test_prepare_writes_the_rules_of_the_plan_from_the_inventory_alone() -> None:
    for spec in (gang(), gang(ports=GangPorts(nccl=41000))):
        plan = plan_of(spec).gangs[0]
        addresses = {node.name: node.network.address for node in plan.nodes}
        for planned_node, node in zip(plan.nodes, spec.nodes, strict=True):
            assert sorted(firewall(spec, node, addresses).splitlines()) == sorted(
                nftables(plan, planned_node).splitlines()
            )


def test_what_unpickles_beside_the_rendezvous_is_closed_unless_the_service_is_there() -> None:
    for port, closed in ((5000, "5001-5035"), (65501, ""), (7990, "")):
        plan = planned(ports=GangPorts(dist_init=port))
        leader, worker, *_ = (nftables(plan, node) for node in plan.nodes)
        assert (f"dport {closed} " in leader) == bool(closed) == ("attention" in leader)
        assert "attention" not in worker


def test_rails_and_the_service_stay_open() -> None:
    plan = planned()
    for node in plan.nodes:
        text = nftables(plan, node)
        ours = f"ip daddr != {node.network.address} accept"
        assert ours in text, "what comes in for a rail's address is not ours to close"
        assert "udp" not in text and "policy accept" in text
        assert all(member.network.address in text for member in plan.nodes)


def test_a_gang_of_one_node_has_its_service_alone() -> None:
    plan = planned()
    assert [row.purpose for row in port_uses(replace(plan, nodes=plan.nodes[:1]))] == ["HTTP"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="nft in a network namespace needs root")
def test_the_rules_load_twice_and_go_with_one_command() -> None:
    plan = planned()
    for node in plan.nodes:
        text = nftables(plan, node)
        script = (
            "nft -f - <<'X' && nft -f - <<'Y' && nft list table inet l40s_deploy && nft delete table inet l40s_deploy"
        )
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", f"{script}\n{text}X\n{text}Y\n"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "32768-60999" in done.stdout
        assert (f"dport {plan.leader.leader.port} " in done.stdout) == (node.node_rank == 0)
        assert f"dport {plan.http_port} " not in done.stdout or node.node_rank
