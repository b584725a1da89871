"""How the nodes of a gang communicate, and what `nettest` has measured of that: input of the speed model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.inventory import GangSpec
from orchestrator.model.network_figures import BYTES_A_NUMBER, Between
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile
from orchestrator.planning.roofline import Network
from orchestrator.protocol.network import Transport
from orchestrator.records.nettests import newest
from orchestrator.topology.speed import Traffic


def planned_network(gang: GangSpec, plan: GangPlan, profile: ModelProfile) -> Network:
    """By the plan, which has looked at the nodes."""
    socket = any(node.network.transport is Transport.TCP for node in plan.nodes)
    return _network(gang, plan.stack, profile, Traffic.TCP if socket else Traffic.RAILS, assumed=False)


def assumed_network(gang: GangSpec, stack: str, profile: ModelProfile) -> Network:
    """By the inventory alone: RDMA unless it says TCP."""
    asked = {node.transport for node in gang.nodes}
    traffic = Traffic.TCP if asked == {"tcp"} else Traffic.RAILS
    return _network(gang, stack, profile, traffic, assumed=asked == {"auto"})


def _network(gang: GangSpec, stack: str, profile: ModelProfile, traffic: Traffic, *, assumed: bool) -> Network:
    """With the newest test of these nodes, slow or not: it is what the network gives today. What was measured over RDMA
    says nothing of TCP between the nodes."""
    found = newest(gang, stack, sum(node.gpus for node in gang.nodes))
    if found is None:
        return Network(traffic=traffic, assumed=assumed)
    other = traffic is Traffic.TCP and any("IB over" in str(words) for words in _transport(found).values())
    token = profile.dimensions.hidden_size * BYTES_A_NUMBER
    return Network(
        traffic=traffic,
        assumed=assumed,
        everywhere={} if other else _reduces(found, Between.ALL, token),
        inside=_reduces(found, Between.NODE, token),
        test=f"nettest {found.get('id', '')}" + (", which found it slow" if found["verdict"] == "slow" else ""),
    )


def _transport(found: Mapping[str, Any]) -> Mapping[str, Any]:
    said = found.get("transport")
    return said if isinstance(said, dict) else {}


def _reduces(found: Mapping[str, Any], between: Between, token: int) -> dict[int, float]:
    """Seconds of an all-reduce by tokens of this model; of several nodes the slowest."""
    by_tokens: dict[int, float] = {}
    for one in found["tests"]:
        if one["kind"] == between.value and one["bytes"] == one["wanted_bytes"] and one["bytes"] % token == 0:
            tokens = int(one["bytes"]) // token
            by_tokens[tokens] = max(by_tokens.get(tokens, 0.0), float(one["measured_us"]) / 1e6)
    return by_tokens
