"""Addresses that anybody on the internet could reach: the engine's rendezvous and queues listen on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="PUBLIC-ADDRESS",
    title="a node has a public address",
    explain="torch's rendezvous store and the engine's queues listen on every address, without a password.",
    reads=("addresses of all interfaces",),
    source="torch TCPStore; SGLang's ZMQ sockets",
    weight=70,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node."""
    for node in cluster.nodes:
        public = [
            (interface.name, address)
            for interface in node.topology.interfaces
            for address in (*interface.ipv4, *interface.ipv6)
            if _is_public(address)
        ]
        if public:
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=tuple(sorted({interface for interface, _ in public})),
                title="public address: " + ", ".join(address for _, address in public),
                evidence=tuple(f"address of {interface} = {address}" for interface, address in public),
                effect="rendezvous and engine queues also listen there, without a password",
                fix="add a firewall that lets only the cluster's own network reach this node's ports",
            )


def _is_public(address: str) -> bool:
    try:
        return ip_interface(address).is_global
    except ValueError:
        return False
