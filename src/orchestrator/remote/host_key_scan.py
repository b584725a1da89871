"""The host keys that nodes show before they are trusted, and how known_hosts stores them afterwards."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.remote import known_hosts
from orchestrator.remote.known_hosts import fingerprint
from orchestrator.remote.ssh_target import target_of
from orchestrator.remote.ssh_way import shown_key


@dataclass(frozen=True, slots=True)
class ShownKey:
    """kind: as OpenSSH calls it. key: in base64. known: by known_hosts, or to be recorded at the first login anyway"""

    kind: str
    key: str
    fingerprint: str
    known: bool


def scan(nodes: Iterable[NodeSpec], *, deadline_s: float) -> PerNode[ShownKey]:
    """Each node's key; a node that does not answer, or whose key is not the one that we know, is a failure."""
    found: dict[str, ShownKey] = {}
    failures: dict[str, DeployError] = {}

    def one(spec: NodeSpec) -> None:
        try:
            found[spec.name] = _scan(spec, deadline_s)
        except DeployError as failure:
            failures[spec.name] = failure

    nodes = list(nodes)
    with ThreadPoolExecutor(max_workers=len(nodes) or 1) as pool:
        list(pool.map(one, nodes))
    return PerNode(found, failures).ordered([node.name for node in nodes])


def remember(nodes: Iterable[NodeSpec], keys: Mapping[str, ShownKey]) -> str:
    """Append the keys that are not known to the first known_hosts file; its path, '' where nothing was to be done."""
    file = ""
    for node in nodes:
        key = keys.get(node.name)
        if key is not None and not key.known:
            target = target_of(node)
            known_hosts.record(target, key.kind, key.key)
            file = str(target.known_hosts[0]) if target.known_hosts else ""
    return file


def _scan(spec: NodeSpec, deadline_s: float) -> ShownKey:
    target = target_of(spec)
    kind, key = shown_key(target, deadline_s)
    encoded = base64.b64encode(key).decode("ascii")
    known = known_hosts.known_keys(target)
    if not any(not line.marker for line in known) and not any(line.key == encoded for line in known):
        return ShownKey(kind, encoded, fingerprint(key), known=target.accept_new)
    known_hosts.check(target, kind, key, known)
    return ShownKey(kind, encoded, fingerprint(key), known=True)
