"""Clients without a key, of the engine and of the agent's port: agents stay on time and trust nothing they send."""

from __future__ import annotations

import http.client
import secrets

import pytest
from tests.support.gang import Cluster, Gang
from tests.support.hostile import Probe, Strangers, resident_bytes
from tests.support.waiting import slack, until

from orchestrator.engines.registry import dialects

LINES = 32
LINE_BYTES = 60_000
STRANGERS = 64
LATENCY_S = 1.0
"""From a client's connection to the agent's answer, on an idle machine."""
MOST_MEMORY = 64 << 20
QUOTED = "torch.OutOfMemoryError"


ENGINES = {family.versions[-1]: family.engine(family.versions[-1]) for family in dialects().values()}


def watched(version: str) -> dict[str, object]:
    """An engine's own patterns over the scripted engine's processes and endpoints."""
    from tests.support import gang

    own = ENGINES[version].watch().as_json()
    return own | {key: gang.WATCH[key] for key in ("rank_title", "phases", "http", "probe", "stop")}


def get(cluster: Cluster, query: str) -> None:
    connection = http.client.HTTPConnection(cluster.http, timeout=60)
    connection.request("GET", f"/?{query}")
    connection.getresponse().read()
    connection.close()


@pytest.mark.turns
@pytest.mark.parametrize("version", ENGINES)
def test_long_requests_end_no_gang_and_quoted_errors_are_no_cause(gang: Gang, version: str) -> None:
    cluster = gang(
        nodes=2, lease_s=4.0, env={0: {"FAKE_ACCESS": "1"}}, changes={-1: {"watch": watched(version)}}
    ).ready()
    for _ in range(LINES):
        get(cluster, "ibv_poll_cq" * (LINE_BYTES // 11))
    get(cluster, QUOTED * (LINE_BYTES // len(QUOTED)))
    get(cluster, QUOTED)
    log = cluster.log(0)
    until(lambda: log.read_text().count(f'/?{QUOTED} HTTP/1.1" 200 OK') == 1, 60.0, "the last request is in the log")
    assert cluster.states() == ["ready", "ready"]
    cluster.kill_rank(1)
    cluster.failed(20.0)
    cause = cluster.report(0)["cause"]
    assert (cause["tp_rank"], cause["signal"], cause["signature"]) == (1, 9, "")
    assert not any("?" in line for line in cause["lines"])
    cluster.nothing_left()


def test_any_bytes_at_the_agents_port_delay_nobody_and_take_no_memory(gang: Gang) -> None:
    cluster = gang(nodes=2, lease_s=4.0).ready()
    pid = cluster.agent(0)[0]
    before = resident_bytes(pid)
    probe = Probe("127.0.0.1", cluster.agent_port)
    seed = secrets.randbelow(1 << 20)
    with probe.running(), Strangers("127.0.0.1", cluster.agent_port, STRANGERS, seed) as strangers:
        until(lambda: strangers.connections > 1500 and probe.answers > 20, 20.0, lambda: f"seed {seed}: {strangers}")
    assert probe.worst_s < LATENCY_S * slack(), f"seed {seed}"
    assert resident_bytes(pid) - before < MOST_MEMORY, f"seed {seed}"
    assert cluster.states() == ["ready", "ready"]
    assert [cluster.report(node)["links"] for node in (0, 1)] == [{"node1": "heard"}, {"node0": "heard"}]
    assert [answer["state"] for answer in cluster.stop_all()] == ["stopped", "stopped"]
