"""What moves, in cells of a table: GPUs' sensors, rails' throughput, requests and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.screen import printable
from orchestrator.gang.commands.gangs import NodeColumns
from orchestrator.gang.rates import PortRate
from orchestrator.gang.steps.status.loads import HOT_C, GangLoad, NodeLoad
from orchestrator.gang.view import GangView
from orchestrator.protocol.gauges import GpuGauges, slowed_by

if TYPE_CHECKING:  # rich costs 60 ms: `status --json` does without
    from rich.table import Table
    from rich.text import Text


def load_columns(loads: Mapping[str, NodeLoad]) -> NodeColumns:
    """What is in use, beside each node."""
    return NodeColumns(_TITLES, lambda name: _cells(loads.get(name)))


def _cells(load: NodeLoad | None) -> list[Text]:
    from rich.text import Text

    if load is None:
        return [Text("")] * len(_TITLES)
    if load.gauges is None or (load.gauges.error and not load.ports):
        why = load.failure.what if load.failure else load.gauges.error if load.gauges else ""
        return [Text(printable(why)[:32], "yellow"), *[Text("")] * (len(_TITLES) - 1)]
    gpus = load.gauges.gpus
    return [_temperatures(gpus), Text(_power(gpus)), Text(rail_words(load.ports)), _rail_errors(load.ports)]


_TITLES = ("GPU °C", "power", "rails in / out", "rail errors")


def _temperatures(gpus: Sequence[GpuGauges]) -> Text:
    from rich.text import Text

    known = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    slowed = any(throttled(gpu) for gpu in gpus)
    lost = sum(bool(gpu.error) for gpu in gpus)
    words = f"{min(known)}-{max(known)}" if known and min(known) != max(known) else "".join(map(str, known[:1]))
    words += " slowed" * slowed + f" {lost} lost" * bool(lost)
    return Text(words, "bold red" if lost else "bold yellow" if slowed or max(known, default=0) >= HOT_C else "")


def _power(gpus: Sequence[GpuGauges]) -> str:
    known = [gpu.power_mw for gpu in gpus if gpu.power_mw is not None]
    return f"{sum(known) / 1e6:.2f} kW" if known else ""


def throttled(gpu: GpuGauges) -> str:
    """What limits a GPU's clock, as text; '' for nothing that costs speed."""
    return ", ".join(slowed_by(gpu.clocks_event_reasons))


def rail_words(ports: Iterable[PortRate]) -> str:
    """'1.24 / 1.19 GB/s' of all ports together; '' before the second reading."""
    rates = [
        (port.received_bytes_s, port.sent_bytes_s)
        for port in ports
        if port.received_bytes_s is not None and port.sent_bytes_s is not None
    ]
    if not rates:
        return ""
    return f"{sum(one for one, _ in rates) / 1e9:.2f} / {sum(one for _, one in rates) / 1e9:.2f} GB/s"


def _rail_errors(ports: Sequence[PortRate]) -> Text:
    from rich.text import Text

    down = [f"{port.device} down" for port in ports if port.up is False]
    grown: dict[str, int] = {}
    for port in ports:
        for name, more in port.grown.items():
            grown[name] = grown.get(name, 0) + more
    new = [f"{name} +{more}" for name, more in grown.items()]
    if down or new:
        return Text(printable(", ".join([*down, *new[:2]])), "bold yellow")
    return Text(str(sum(port.errors for port in ports)) if ports else "", "dim")


def serving_words(load: GangLoad | None) -> str:
    """'312.4 tokens/s, 12 running, 3 queued, KV cache 41 %'; '' where the engine does not tell."""
    if load is None:
        return ""
    words = [] if load.tokens_s is None else [f"{load.tokens_s:.1f} tokens/s"]
    if load.prompt_tokens_s:
        words.append(f"{load.prompt_tokens_s:.0f} prompt tokens/s")
    words += [f"{load.now.running} running", f"{load.now.queued} queued"]
    words += [] if load.now.cache_used is None else [f"KV cache {100 * load.now.cache_used:.0f} %"]
    return ", ".join(words)


def gpus_table(view: GangView, loads: Mapping[str, NodeLoad]) -> Table:
    """A row a GPU of a gang, for `status --wide`. W, GiB: used and limit; ECC: errors, corrected + uncorrected."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "GPU", "TP", "°C", "W", "MHz", "%", "GiB", "ECC", "slowed by"):
        table.add_column(title)
    for node in view.nodes:
        ranks = {rank.gpu: rank for rank in node.ranks}
        load = loads.get(node.name)
        for gpu in load.gauges.gpus if load is not None and load.gauges is not None else ():
            rank = ranks.get(gpu.index)
            table.add_row(
                Text(printable(node.name)),
                str(gpu.index),
                str(rank.tp_rank) if rank else "",
                _or_nothing(gpu.temperature_c),
                f"{gpu.power_mw / 1000:.0f}{_limit(gpu)}" if gpu.power_mw is not None else "",
                _or_nothing(gpu.sm_clock_mhz),
                _or_nothing(gpu.utilization_percent),
                _memory(gpu),
                _ecc(gpu),
                Text(printable(gpu.error or throttled(gpu)), "bold red" if gpu.error else "bold yellow"),
            )
    return table


def _or_nothing(value: int | None) -> str:
    return "" if value is None else str(value)


def _limit(gpu: GpuGauges) -> str:
    return f"/{gpu.power_limit_mw / 1000:.0f}" if gpu.power_limit_mw else ""


def _memory(gpu: GpuGauges) -> str:
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        return ""
    return f"{gpu.memory_used_bytes / (1 << 30):.1f}/{gpu.memory_total_bytes / (1 << 30):.1f}"


def _ecc(gpu: GpuGauges) -> str:
    if gpu.ecc_corrected is None and gpu.ecc_uncorrected is None:
        return ""
    if not gpu.ecc_corrected and not gpu.ecc_uncorrected:
        return "none"
    return f"{gpu.ecc_corrected or 0}+{gpu.ecc_uncorrected or 0}"
