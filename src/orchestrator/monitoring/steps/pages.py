"""What the page of `web` shows, as HTML. Reads only; each slow source is read again once it is old, aside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from orchestrator import __version__
from orchestrator.bench.steps.report import bench_html, newest_curves
from orchestrator.bench.steps.report import page_of as bench_of
from orchestrator.bench.store import all_benches
from orchestrator.doctor.steps.doctor import examine_inventory
from orchestrator.doctor.steps.report import page_of as report_of
from orchestrator.doctor.steps.report import pictures, report_html
from orchestrator.gang.history import PastRun
from orchestrator.gang.steps.status.history import history, why, why_json
from orchestrator.gang.steps.status.live import HOT_C, Moment, NodeLoad, Watching, live_json
from orchestrator.gang.timeline import PortRate
from orchestrator.gang.view import NodeView
from orchestrator.loading.resources import templates
from orchestrator.model.errors import DeployError, InputError
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.gauges import GpuGauges, slowed_by
from orchestrator.protocol.report import RankReport, RankState
from orchestrator.rendering import report_page
from orchestrator.topology.picture import OLD, LiveState, Picture, lit

RECORDS_S = 10.0
DOCTOR_S = 600.0
"""How old what was kept of past runs, and of the hardware, may get before it is read again."""
MOST_RUNS = 20
MOST_EVENTS = 12
MOST_DRAWINGS = 16
"""Nodes whose inside is on the page; of the others there is the row of their GPUs."""


class CachedValue:
    """A value that is read on a thread of its own, at most once in `every_s`; callers never wait for it."""

    def __init__(self, read: Callable[[], Any], every_s: float) -> None:
        self._read, self._every_s = read, every_s
        self._value: Any = None
        self._error = ""
        self._at = float("-inf")
        self._free = threading.Lock()

    def value(self) -> tuple[Any, str]:
        """The newest one, None before the first; and why reading failed, '' where it did not."""
        if time.monotonic() - self._at > self._every_s and self._free.acquire(blocking=False):
            threading.Thread(target=self._again, daemon=True).start()
        return self._value, self._error

    def _again(self) -> None:
        try:
            self._value, self._error = self._read(), ""
        except DeployError as failure:
            self._error = f"{failure.where}: {failure.what}"
        finally:
            self._at = time.monotonic()
            self._free.release()


class Pages:
    """HTML of everything that is served."""

    def __init__(self, inventory: Inventory, gangs: tuple[str, ...], source: Watching) -> None:
        self._source = source
        self._style = templates("page.css", "node_drawing.css", "curves.css", "live.css", "dark.css")
        self._part = templates("node_drawing.html.j2", "curves.html.j2", "live_part.html.j2")
        self._runs = CachedValue(lambda: history(inventory, gangs), RECORDS_S)
        self._why = CachedValue(lambda: why_json(why(inventory, gangs))["gangs"], RECORDS_S)
        self._inside = CachedValue(lambda: _inside(inventory), DOCTOR_S)
        self._bench = CachedValue(lambda: newest_curves(all_benches()), RECORDS_S)

    def page(self, nonce: str) -> str:
        """The page, with its first picture in it. nonce: what lets its one script run."""
        shown = {"version": __version__, "nonce": nonce, "part": Markup(self.part())}  # noqa: S704 - escaped there
        return report_page(shown, templates("live.html.j2"), self._style)

    def part(self) -> str:
        """What the page puts in the place of its picture: blocks with an id each, of which it takes what changed."""
        return report_page(self._now(), self._part, "")

    def document(self) -> dict[str, Any]:
        """As `status --watch --json`."""
        return live_json(self._source.look())

    def doctor(self) -> str:
        """The page of `doctor --report`; a placeholder while the nodes are examined."""
        inside, error = self._inside.value()
        if inside is None:
            return _soon("The nodes are being examined.", error)
        return report_html(inside[0])

    def bench(self) -> str:
        """The page of `bench --html`, of every run recorded on this machine. Raises InputError where there is none."""
        if not (records := all_benches()):
            raise InputError("no benchmark is recorded", where="bench", fix="measure one: l40s-deploy bench")
        return bench_html(bench_of(records))

    def _now(self) -> dict[str, Any]:
        moment = self._source.look()
        document = live_json(moment)
        (runs, _), (told, _), (bench, _) = (kept.value() for kept in (self._runs, self._why, self._bench))
        inside, error = self._inside.value()
        causes = {one["name"]: one for one in told or ()}
        shown = _nodes(moment, inside[1] if inside else {})
        gangs = [
            {
                **gang,
                "why": causes.get(gang["name"]),
                "events": gang["events"][-MOST_EVENTS:],
                "nodes": [{**node, **shown[gang["name"], node["name"]]} for node in gang["nodes"]],
            }
            for gang in document["gangs"]
        ]
        past = sorted((run for kept in runs or () for run in kept.runs), key=lambda run: run.started, reverse=True)
        return {
            "clock": time.strftime("%H:%M:%S", time.localtime(document["at"])),
            "gangs": gangs,
            "router": document["router"],
            "runs": _timeline(past[:MOST_RUNS], document["at"]),
            "examined": inside is not None,
            "not_examined": error,
            "bench": bench or {},
            "time_of": lambda at: time.strftime("%H:%M:%S", time.localtime(at)),
        }


def _inside(inventory: Inventory) -> tuple[dict[str, Any], Mapping[str, Picture]]:
    """What an examination of the hardware gave: the page of `doctor --report`, and each node's drawing."""
    examination = examine_inventory(inventory)
    return report_of(examination), pictures(examination)


def _nodes(moment: Moment, drawings: Mapping[str, Picture]) -> dict[tuple[str, str], dict[str, Any]]:
    """By gang and node: lights of its GPUs and ports, and its drawing with them where one is there."""
    nodes = [(view.name, node) for view in moment.seen.views for node in view.nodes]
    drawn = [node.name for _, node in nodes if node.name in drawings][:MOST_DRAWINGS]
    found = {}
    for gang, node in nodes:
        now = lights(node, moment.nodes.get(node.name) or NodeLoad())
        drawing = lit(drawings[node.name], now.gpus, now.ports, old=now.old) if node.name in drawn else None
        found[gang, node.name] = {"gpus_now": now.gpus, "ports_now": list(now.ports.values()), "drawing": drawing}
    return found


def _timeline(runs: list[PastRun], now: float) -> list[dict[str, Any]]:
    """A row a run. start, served: (where it begins, how long it is) in per cent of the time since the oldest began; a
    start that never came to ready is all start."""
    first = min((run.started for run in runs), default=now)
    all_s = max(1.0, now - first)

    def share(begin: float, end: float) -> tuple[float, float]:
        return round(100 * (begin - first) / all_s, 2), round(100 * max(0.0, end - begin) / all_s, 2)

    def row(run: PastRun) -> dict[str, Any]:
        end = max(run.started, min(now, run.ended or now))
        ready = min(end, run.started + run.start.seconds) if run.start else end
        return {
            "gang": run.gang,
            "end": run.end,
            "by": run.by,
            "when": time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
            "took_s": round(run.start.seconds) if run.start else None,
            "start": share(run.started, ready),
            "served": share(ready, end),
            "failed_at": share(end, end)[0] if run.end == GangState.FAILED.value else None,
            "cause": f"{run.cause.node}: {run.cause.text}" if run.cause else "",
        }

    return [row(run) for run in runs]


def _soon(words: str, error: str) -> str:
    page = (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3">'
        '<meta name="color-scheme" content="light dark">'
        "<title>doctor</title>"
        "<style>{{ style }}</style><main><p>{{ words }}</p><p>{{ error }}</p></main></html>"
    )
    return report_page({"words": words, "error": error}, page, templates("page.css", "dark.css"))


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
