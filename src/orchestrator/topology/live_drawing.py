"""A node's drawing with what its GPUs and RDMA ports do at this moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.topology.picture import Box, Picture, Port

OLD = "old"
"""State of a thing of which nothing is known at this moment, because its node is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """state: up, hot, bad, OLD, or '' where nothing is to be said. name: in place of the drawing's own, '' to keep it;
    words: of its figures; title: what else there is to know."""

    state: str
    name: str = ""
    words: str = ""
    title: str = ""


_DOT = {"up": "up", "hot": "idle", "bad": "down", OLD: OLD}
"""Colour of a port's dot, by state."""
_NOT_BY_LINK = ("idle", "other")
"""What a link alone does not change: a port that has no address, and one that is no rail."""


def lit(
    drawn: Picture, gpus: Mapping[int, LiveState], ports: Mapping[tuple[str, int], LiveState], *, old: bool = False
) -> Picture:
    """gpus by NVML's index, ports by RDMA device and number; what is in neither stays as it was drawn.

    old: nothing is known about the node at this moment
    """
    otherwise = LiveState(state=OLD) if old else None
    return replace(
        drawn,
        boxes=[_box(box, gpus.get(box.gpu, otherwise)) for box in drawn.boxes],
        ports=[_port(port, ports.get((port.device, port.number), otherwise)) for port in drawn.ports],
    )


def _box(box: Box, now: LiveState | None) -> Box:
    if now is None or box.kind != "gpu":
        return box
    first, second = box.lines
    title = "; ".join(filter(None, (f"{first}: {box.title}", now.title)))
    return replace(box, lines=(now.name or first, now.words or second), title=title, state=now.state)


def _port(port: Port, now: LiveState | None) -> Port:
    if now is None:
        return port
    if now.state == "up" and port.state in _NOT_BY_LINK:
        return port
    return replace(port, state=_DOT.get(now.state, port.state), detail=now.words or port.detail)
