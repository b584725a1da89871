"""Which nodes see one and the same directory: each writes a file with a random name and looks for the others'."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from orchestrator.model.deadlines import SAME_ROOT_S
from orchestrator.protocol.jobs import SameRootAnswer, SameRootRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


def same_roots(fleet: Fleet, directories: Mapping[str, str], child: str = "") -> Mapping[str, str]:
    """For each node the first node that sees the same directory, itself if no other node does.

    directories: each node's, by name. One that does not answer is left out.
    What a node says decides for that node alone: none can say of another one that it has what it has not. A node that
    can't write there sees the others' files and not its own; it belongs to the first one that it sees.
    child: a name below them; where it is a mount of its own, or a link to another file system, nobody else has it
    """
    names = {node: f".l40s-nonce-{secrets.token_hex(12)}" for node in directories}

    def on_every(op: str) -> Mapping[str, SameRootAnswer]:
        def one(session: Session) -> SameRootAnswer:
            name = session.spec.name
            request = SameRootRequest(
                op=op, directory=directories[name], name=names[name], names=tuple(names.values()), child=child
            )
            return ask(session, "same-root", request, SameRootAnswer, deadline_s=SAME_ROOT_S)

        return fleet.on_every(one, only=set(directories)).values

    try:
        on_every("write")
        looked = on_every("look")
    finally:
        on_every("remove")
    owners = {name: node for node, name in names.items()}
    alone = {node for node, answer in looked.items() if answer.apart}
    seen = {
        node: set() if node in alone else {owners[name] for name in set(answer.seen) & set(owners)} - alone
        for node, answer in looked.items()
    }
    return {node: _owner(node, seen, directories) for node in seen}


def _owner(node: str, seen: Mapping[str, set[str]], order: Iterable[str]) -> str:
    """The first node in order that it sees and that sees its own file. No chain is followed: a lie could make one."""
    owners = [other for other in order if other in seen[node] and other in seen.get(other, ())]
    return owners[0] if owners else node
