"""`lab status`: the shape of a lab, and which of its nodes answer."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from l40s_lab.breaking import state as fault_state
from l40s_lab.breaking.state import NodeState
from l40s_lab.life.blueprint import FILE, Blueprint
from l40s_lab.life.home import Home, home
from l40s_lab.life.request import check_name
from orchestrator.loading.which import lab_root
from orchestrator.protocol.errors import InputError

_ANSWER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """state: up (its SSH server answers) or down."""

    name: str
    address: str
    state: str
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """One lab; inventory: path of the inventory to use it with."""

    name: str
    level: int
    wiring: str
    engine: str
    inventory: str
    nodes: tuple[NodeStatus, ...]


def status(name: str) -> LabStatus:
    """A lab's status; raises InputError if there is none of this name."""
    return _status(*require(name))


def require(name: str) -> tuple[Home, Blueprint]:
    """An existing lab; raises InputError if there is none of this name."""
    check_name(name)
    place = home(name)
    blueprint = place.blueprint()
    if blueprint is None and (place.path / FILE).exists():
        raise InputError(
            f"the lab {name!r} was made by another version of l40s-deploy",
            where=str(place.path / FILE),
            fix=f"remove it with `l40s-deploy lab down --name {name}`",
        )
    if blueprint is None:
        others = sorted(path.parent.name for path in lab_root().glob("*/blueprint.json"))
        known = f"; there is {', '.join(others)}" if others else ""
        raise InputError(
            f"no lab named {name!r}{known}",
            where=str(place.path),
            fix=f"run `l40s-deploy lab status --name {others[0]}`" if others else "start one with `l40s-deploy lab up`",
        )
    return place, blueprint


def _status(place: Home, blueprint: Blueprint) -> LabStatus:
    answers = answering(blueprint)
    states = fault_state.read(place.path)
    return LabStatus(
        name=blueprint.name,
        level=blueprint.level,
        wiring=blueprint.wiring_name,
        engine=blueprint.engine,
        inventory=str(place.inventory),
        nodes=tuple(
            NodeStatus(
                name=node,
                address=blueprint.address(index),
                state="up" if answers[node] else "down",
                faults=tuple(map(str, states.get(node, NodeState()).broken)),
            )
            for index, node in enumerate(blueprint.nodes)
        ),
    )


def answering(blueprint: Blueprint) -> dict[str, bool]:
    """Node -> whether its SSH server answers; all are asked at once, for at most one second."""
    answers = dict.fromkeys(blueprint.nodes, False)
    with selectors.DefaultSelector() as waiting:
        for index, node in enumerate(blueprint.nodes):
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError, OSError):
                client.connect((blueprint.address(index), blueprint.port))
            waiting.register(client, selectors.EVENT_READ, node)
        end = time.monotonic() + _ANSWER_S
        while waiting.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                client = key.fileobj  # type: ignore[assignment]
                with suppress(OSError):
                    answers[key.data] = client.recv(4) == b"SSH-"
                waiting.unregister(client)
                client.close()
        for key in list(waiting.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return answers
