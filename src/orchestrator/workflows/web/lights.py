"""What the page says of each GPU and RDMA port of a node: its colour and its figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.bench.machines import SLOWING
from orchestrator.gang.rates import PortRate
from orchestrator.gang.view import NodeView
from orchestrator.model.gang_state import NodeState
from orchestrator.protocol.gauges import GpuGauges
from orchestrator.protocol.report import RankReport, RankState
from orchestrator.topology.lit import OLD, Lit
from orchestrator.workflows.status.loads import HOT_C, NodeLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Lights:
    """gpus by NVML's index, in its order; ports by RDMA device and number. old: the node does not answer."""

    gpus: dict[int, Lit]
    ports: dict[tuple[str, int], Lit]
    old: bool = False


def lights(node: NodeView, load: NodeLoad) -> Lights:
    """Of a node that does not answer, everything is old."""
    ranks = {rank.gpu: rank for rank in node.ranks}
    told = {gpu.index: gpu for gpu in load.gauges.gpus} if load.gauges else {}
    old = node.error is not None or node.state is NodeState.SILENT
    return Lights(
        gpus={index: _gpu(ranks.get(index), told.get(index), old=old) for index in sorted({*ranks, *told})},
        ports={(port.device, port.port): _port(port, old=old) for port in load.ports},
        old=old,
    )


def _gpu(rank: RankReport | None, gpu: GpuGauges | None, *, old: bool) -> Lit:
    figures = [] if gpu is None else [
        *([] if gpu.temperature_c is None else [f"{gpu.temperature_c} °C"]),
        *([] if gpu.power_mw is None else [f"{gpu.power_mw / 1000:.0f} W"]),
    ]  # fmt: skip
    slowed = [words for bit, words in SLOWING.items() if gpu and (gpu.clocks_event_reasons or 0) & bit]
    titles = [
        f"TP rank {rank.tp_rank}, process {rank.pid}: {rank.state.value}" if rank else "no rank",
        f"slowed by {', '.join(slowed)}" if slowed else "",
        gpu.error if gpu else "",
        "its node does not answer: this is out of date" if old else "",
    ]
    state = OLD if old else _state(rank, gpu, slowed=bool(slowed))
    dead = rank is not None and rank.state is RankState.DEAD
    words = "dead" if dead and not old else " ".join(figures)
    name = f"TP{rank.tp_rank}" if rank else ""
    return Lit(state=state, name=name, words=words, title="; ".join(filter(None, titles)))


def _state(rank: RankReport | None, gpu: GpuGauges | None, *, slowed: bool) -> str:
    if (rank and rank.state is RankState.DEAD) or (gpu and gpu.error):
        return "bad"
    if slowed or (rank and rank.state is RankState.STOPPED) or (gpu and (gpu.temperature_c or 0) >= HOT_C):
        return "hot"
    return "up" if rank and rank.state is RankState.ALIVE else ""


def _port(port: PortRate, *, old: bool) -> Lit:
    if old:
        return Lit(state=OLD, name=port.device)
    if not port.up:
        return Lit(state="bad", name=port.device, words="down")
    rates = _rates(port)
    grown = ", ".join(f"{name} +{more}" for name, more in port.grown.items())
    return Lit(state="hot" if grown else "up", name=port.device, words=grown or rates, title=rates)


def _rates(port: PortRate) -> str:
    if port.received_bytes_s is None or port.sent_bytes_s is None:
        return ""
    return f"{port.received_bytes_s / 1e9:.1f} / {port.sent_bytes_s / 1e9:.1f} GB/s"
