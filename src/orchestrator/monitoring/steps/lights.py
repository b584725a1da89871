"""What the page shows of each GPU and RDMA port of a node: its colour and its figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.gang.rates import PortRate
from orchestrator.gang.steps.status.live import HOT_C, NodeLoad
from orchestrator.gang.view import NodeView
from orchestrator.model.gang_state import NodeState
from orchestrator.protocol.gauges import GpuGauges, slowed_by
from orchestrator.protocol.report import RankReport, RankState
from orchestrator.topology.picture import OLD, LiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class Lights:
    """gpus by NVML's index, in its order; ports by RDMA device and number. old: the node does not answer."""

    gpus: dict[int, LiveState]
    ports: dict[tuple[str, int], LiveState]
    old: bool = False


def lights(node: NodeView, load: NodeLoad) -> Lights:
    """The lights of a node. If it does not answer, all of them are old."""
    ranks = {rank.gpu: rank for rank in node.ranks}
    told = {gpu.index: gpu for gpu in load.gauges.gpus} if load.gauges else {}
    old = node.error is not None or node.state is NodeState.SILENT
    return Lights(
        gpus={
            index: _gpu(ranks.get(index), told.get(index, GpuGauges(index=index)), old=old)
            for index in sorted({*ranks, *told})
        },
        ports={(port.device, port.port): _port(port, old=old) for port in load.ports},
        old=old,
    )


def _gpu(rank: RankReport | None, gpu: GpuGauges, *, old: bool) -> LiveState:
    slowed = slowed_by(gpu.clocks_event_reasons)
    titles = [
        f"TP rank {rank.tp_rank}, process {rank.pid}: {rank.state.value}" if rank else "no rank",
        f"slowed by {', '.join(slowed)}" if slowed else "",
        gpu.error,
        "its node does not answer: this is out of date" if old else "",
    ]
    process = rank.state if rank else None
    return LiveState(
        state=OLD if old else _state(process, gpu, slowed=bool(slowed)),
        name=f"TP{rank.tp_rank}" if rank else "",
        words="dead" if process is RankState.DEAD and not old else _figures(gpu),
        title="; ".join(filter(None, titles)),
    )


def _figures(gpu: GpuGauges) -> str:
    """'61 °C 310 W', without what the driver does not report."""
    heat = "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
    power = "" if gpu.power_mw is None else f"{gpu.power_mw / 1000:.0f} W"
    return f"{heat} {power}".strip()


def _state(process: RankState | None, gpu: GpuGauges, *, slowed: bool) -> str:
    if process is RankState.DEAD or gpu.error:
        return "bad"
    if slowed or process is RankState.STOPPED or (gpu.temperature_c or 0) >= HOT_C:
        return "hot"
    return "up" if process is RankState.ALIVE else ""


def _port(port: PortRate, *, old: bool) -> LiveState:
    if old or port.up is None:
        return LiveState(state=OLD, name=port.device)
    if not port.up:
        return LiveState(state="bad", name=port.device, words="down")
    rates = _rates(port)
    grown = ", ".join(f"{name} +{more}" for name, more in port.grown.items())
    return LiveState(state="hot" if grown else "up", name=port.device, words=grown or rates, title=rates)


def _rates(port: PortRate) -> str:
    if port.received_bytes_s is None or port.sent_bytes_s is None:
        return ""
    return f"{port.received_bytes_s / 1e9:.1f} / {port.sent_bytes_s / 1e9:.1f} GB/s"
