"""Real agents and a leader link that is reset: living nodes continue, and a dead one is noticed at once."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from tests.support.gang import Cluster, Gang
from tests.support.ports import free_port
from tests.support.resetting import ResettingWay
from tests.support.waiting import until

from orchestrator.node.agent.membership import RECONNECT_S


def guardian_of(cluster: Cluster, node: int) -> int:
    engine = cluster.report(node)["engine_pid"]
    return int(Path(f"/proc/{engine}/stat").read_text().rsplit(")", 1)[1].split()[1])


def told(cluster: Cluster) -> object:
    """Every node's state of the link, and its events."""
    return [
        (report["state"], report["links"], report["cause"], cluster.log(node).with_name("events.jsonl").read_text())
        for node, report in ((node, cluster.report(node)) for node in range(cluster.nodes))
    ]


def joined(cluster: Cluster, node: int) -> int:
    """How often this node's side of the link was connected."""
    return cluster.log(node).with_name("events.jsonl").read_text().count('"event": "joined"')


def joined_on_both(cluster: Cluster, times: int) -> bool:
    return [joined(cluster, node) for node in (0, 1)] == [times, times]


def by_way_of(way: ResettingWay) -> dict[int, dict[str, object]]:
    return {1: {"leader": {"address": "127.0.0.1", "port": way.port}}}


def test_a_link_that_is_reset_for_a_second_ends_nothing(gang: Gang) -> None:
    port = free_port()
    with ResettingWay(port) as way:
        cluster = gang(nodes=2, agent_port=port, changes=by_way_of(way)).ready()
        for again in (2, 3):
            way.cut()
            time.sleep(1.0)  # the length of the cut is what this tests
            way.restore()
            until(partial(joined_on_both, cluster, again), 5.0, lambda: told(cluster))
        assert cluster.states() == ["ready", "ready"]
        cluster.kill_rank(2)
        cluster.failed()
        assert cluster.report(0)["verdict"]["tp_rank"] == 2


def test_a_rank_that_dies_while_the_link_is_cut_is_the_cause_once_it_is_back(gang: Gang) -> None:
    port = free_port()
    with ResettingWay(port) as way:
        cluster = gang(nodes=2, agent_port=port, changes=by_way_of(way)).ready()
        way.cut()
        cluster.kill_rank(2)
        way.restore()
        cluster.failed()
        assert cluster.report(0)["verdict"]["tp_rank"] == 2, told(cluster)


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_dies_with_its_guardian_is_missed(gang: Gang, node: int) -> None:
    cluster = gang(nodes=2).ready()
    guardian = guardian_of(cluster, node)
    began = time.monotonic()
    os.kill(guardian, signal.SIGSTOP)
    cluster.signal_agent(node, signal.SIGKILL)
    os.kill(guardian, signal.SIGKILL)
    other = 1 - node
    until(lambda: cluster.report(other)["state"] == "failed", RECONNECT_S + 5.0, "failed")
    assert time.monotonic() - began >= RECONNECT_S
    text = cluster.report(other)["cause"]["text"]
    assert f"the connection to the agent on node{node} ended" in text
    assert ("every new connection was refused" if node == 0 else "no new connection was made") in text
    until(lambda: not cluster.agents_alive(), 10.0, "agents gone")
