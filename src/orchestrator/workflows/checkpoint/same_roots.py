"""Which nodes see one and the same directory: every one writes a file with a name of chance, all look for all."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import call
from orchestrator.remote.session import Session

DEADLINE_S = 30.0


def same_roots(fleet: Fleet, directories: Mapping[str, str], child: str = "") -> Mapping[str, str]:
    """For each node the first node that sees the same directory, itself where nobody else does.

    directories: each node's, by name. A node that can't write there is recognised by what it sees; one that does not
    answer is left out.
    child: a name below them; where it is a mount of its own, or a link to another file system, nobody else has it
    """
    names = {node: f".l40s-nonce-{secrets.token_hex(12)}" for node in directories}

    def ask(session: Session, op: str, **more: Any) -> Mapping[str, Any]:
        directory = directories[session.spec.name]
        request = {"op": op, "directory": directory, **more}
        answer: Mapping[str, Any] = call(session, "same-root", request, deadline_s=DEADLINE_S)
        return answer

    try:
        fleet.on_every(lambda session: ask(session, "write", name=names[session.spec.name]), only=set(directories))
        looking = {"names": list(names.values()), "child": child}
        looked = fleet.on_every(lambda session: ask(session, "look", **looking), only=set(directories))
    finally:
        fleet.on_every(lambda session: ask(session, "remove", name=names[session.spec.name]), only=set(directories))
    owners = {name: node for node, name in names.items()}
    alone = {node for node, answer in looked.values.items() if answer["apart"]}
    seen = {
        node: set() if node in alone else {owners[name] for name in answer["seen"]} - alone
        for node, answer in looked.values.items()
    }
    return {node: next((other for other in directories if _one(seen, node, other)), node) for node in seen}


def _one(seen: Mapping[str, set[str]], node: str, other: str) -> bool:
    return node == other or other in seen[node] or node in seen.get(other, set())
