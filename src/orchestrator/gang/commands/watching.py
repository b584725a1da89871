"""`status --watch`: one picture that is drawn again where something changed; lines where there is no terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.tables import cell, fitted, plain_table
from orchestrator.engines.serving import Serving
from orchestrator.gang.commands.gangs import LOAD_TITLES, LoadCells, around_block, gang_block, lines, node_words, styled
from orchestrator.gang.overview import Overview
from orchestrator.gang.steps.status.live import HOT_C, GangLoad, Moment, NodeLoad, Watching, clock_time, live_json
from orchestrator.gang.timeline import PortRate, since_ready
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.gauges import GpuGauges, slowed_by
from orchestrator.protocol.report import RankState

DRAW_S = 0.5
LINE_EVERY_S = 30.0
"""Between two lines about a gang of which nothing has changed."""
EVENTS = 8
FEW_REMARKS = 3
"""Of a gang that is not well, where not everything has the room: its nodes are below them."""
TABLE_WIDTH = 220
_CLEAR_BELOW, _HOME, _ERASE_LINE = "\x1b[J", "\x1b[H", "\x1b[K"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""xterm's other screen, without a cursor, and back to what was there before."""


def watch(source: Watching, screen: Screen, *, wide: bool, until: Callable[[], bool] = lambda: False) -> Moment:
    """Show moments until Ctrl-C, or `until`; returns the last one."""
    if sys.stdout.isatty() and screen.moves and not screen.as_json:
        with WatchScreen(screen, wide=wide) as picture:
            return _loop(source, picture.draw, until)
    return _loop(source, _documents if screen.as_json else ChangeLines(screen).show, until)


def _loop(source: Watching, show: Callable[[Moment], None], until: Callable[[], bool]) -> Moment:
    moment = source.look()
    try:
        while True:
            show(moment)
            if until():
                return moment
            time.sleep(DRAW_S)
            moment = source.look()
    except KeyboardInterrupt:
        return moment


def _documents(moment: Moment) -> None:
    """One document a line."""
    sys.stdout.write(json.dumps(live_json(moment), ensure_ascii=True) + "\n")
    sys.stdout.flush()


class WatchScreen:
    """The terminal's other screen. Only lines that changed are written, so that nothing flickers, and a slow
    connection carries what is new."""

    def __init__(self, screen: Screen, *, wide: bool) -> None:
        self._screen = screen
        self._wide = wide
        self._size: tuple[int, int] = (0, 0)
        self._lines: list[str] = []

    def __enter__(self) -> WatchScreen:
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_LEAVE)

    def draw(self, moment: Moment) -> None:
        """Update the screen; redraw it if the terminal's size has changed."""
        told = os.get_terminal_size(sys.stdout.fileno())
        size = (told.columns or 80, told.lines or 24)  # a serial console tells neither
        rows = [self._cut(row, size[0]) for row in _rows(size[1], self._rendered(moment, *size))]
        if size != self._size:
            self._size, self._lines = size, []
            self._write(_HOME + _CLEAR_BELOW)
        changed = [
            f"\x1b[{place + 1};1H{row}{_ERASE_LINE}"
            for place, row in enumerate(rows)
            if place >= len(self._lines) or self._lines[place] != row
        ]
        if len(rows) < len(self._lines):
            changed.append(f"\x1b[{len(rows) + 1};1H{_CLEAR_BELOW}")
        if changed:
            self._write("".join(changed))
        self._lines = rows

    def _rendered(self, moment: Moment, width: int, height: int) -> list[str]:
        """Everything where it has the room. Else a few remarks; of several gangs a line for each, and below them
        details, those first of gangs that are not well."""
        rows = self._rows_of(picture(moment, wide=self._wide), width)
        if len(rows) <= height:
            return rows
        if len(moment.seen.views) == 1:
            return self._rows_of(picture(moment, wide=self._wide, most_remarks=FEW_REMARKS), width)
        rows = self._lines_of(Group(*glance(moment)), TABLE_WIDTH)
        for details in gang_pictures(moment, wide=self._wide):
            rows += self._rows_of(details, width)
        return rows

    def _rows_of(self, blocks: Iterable[RenderableType], width: int) -> list[str]:
        """Sentences are wrapped. Each row of a table stays one line: columns without room follow as sentences."""
        rows: list[str] = []
        for block in blocks:
            if not isinstance(block, Table):
                rows += self._lines_of(block, width)
                continue
            table, beside = fitted(block, width, names=("node", "GPU"))
            rows += self._lines_of(table, max(width, TABLE_WIDTH))
            rows += chain.from_iterable(self._lines_of(line, width) for line in beside)
        return rows

    def _lines_of(self, block: RenderableType, width: int) -> list[str]:
        console = self._screen.out
        console.width = width  # print(width=...) can't have more than the terminal's
        with console.capture() as kept:
            console.print(block, crop=False)
        return kept.get().rstrip("\n").split("\n")

    def _cut(self, line: str, width: int) -> str:
        text = Text.from_ansi(line.rstrip())
        text.rstrip()
        text.truncate(width, overflow="ellipsis")
        return self._lines_of(text, TABLE_WIDTH)[0]

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _rows(height: int, rows: list[str]) -> list[str]:
    """The rows that fit, and a note on how many do not."""
    if len(rows) <= height:
        return rows
    return [*rows[: height - 1], f"... {len(rows) - height + 1} more lines: enlarge the terminal, or name one gang"]


def picture(moment: Moment, *, wide: bool, most_remarks: int | None = None) -> list[RenderableType]:
    """All gangs, the router, and what happened last, as `status` has them and with what moves. most_remarks: of each
    gang; None for all"""
    gangs = (_gang_picture(view, moment, wide=wide, most_remarks=most_remarks) for view in moment.seen.views)
    return [_clock(moment), *chain.from_iterable(gangs), *around_block(moment.seen)]


def glance(moment: Moment) -> list[RenderableType]:
    """The time, a line for each gang, and what is around them."""
    return [_clock(moment), *(_gang_line(view, moment) for view in moment.seen.views), *around_block(moment.seen)]


def gang_pictures(moment: Moment, *, wide: bool) -> list[list[RenderableType]]:
    """Each gang as `status` has it and with what moves, those first that do not serve well. What its line of `glance`
    tells is not said again."""
    views = sorted(moment.seen.views, key=lambda view: moment.seen.headline(view) == GangState.READY.value)
    return [
        _gang_picture(view, moment, wide=wide, busy=view.cause is not None, most_remarks=FEW_REMARKS) for view in views
    ]


def _clock(moment: Moment) -> Text:
    return Text(f"{clock_time(moment.taken_at)}  Ctrl-C ends", "dim")


def _gang_line(view: GangView, moment: Moment) -> Text:
    line = Text.assemble((printable(view.name), "bold"), " ", styled(moment.seen.headline(view)))
    cause = f"{view.cause.node}: {view.cause.text}" if view.cause else ""
    words = cause or serving_words(moment.gangs.get(view.name), view.request_limit) or view.progress
    return line.append(f"  {printable(words)}") if words else line


def _gang_picture(
    view: GangView, moment: Moment, *, wide: bool, busy: bool = True, most_remarks: int | None = None
) -> list[RenderableType]:
    """A gang's own lines. What happened while it started is left out once it serves. busy: its load too"""
    events = moment.events.get(view.name, ())
    newest = (since_ready(events) if view.serves else events)[-EVENTS:]
    happened = [f"{clock_time(event.at)} {event.node}: {event.words}" for event in newest]
    load = serving_words(moment.gangs.get(view.name), view.request_limit) if busy else ""
    blocks = _gang_blocks(view, moment.seen, moment.nodes, load, wide=wide, most_remarks=most_remarks)
    return [*blocks, *lines(happened, "dim")]


def status_blocks(
    seen: Overview, loads: Mapping[str, NodeLoad] | None = None, *, wide: bool = False, remarks: bool = False
) -> list[RenderableType]:
    """All gangs and what is around them. loads: of nodes by name; wide: a row for each GPU too; remarks: also those on
    gangs that are well"""
    gangs = (
        _gang_blocks(view, seen, loads, draft_words(seen.serving.get(view.name)), wide=wide, remarks=remarks)
        for view in seen.views
    )
    return [*chain.from_iterable(gangs), *around_block(seen)]


def _gang_blocks(
    view: GangView,
    seen: Overview,
    loads: Mapping[str, NodeLoad] | None,
    busy: str = "",
    *,
    wide: bool,
    remarks: bool = False,
    most_remarks: int | None = None,
) -> list[RenderableType]:
    cells = load_cells(loads) if loads is not None else None
    state = seen.headline(view)
    blocks = gang_block(view, seen.router, cells, busy, state=state, remarks=remarks, most_remarks=most_remarks)
    return [*blocks, gpus_table(view, loads)] if wide and loads is not None else blocks


class ChangeLines:
    """One line for every change of a gang or of a node, and one now and then while nothing changes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._said: dict[str, str] = {}
        self._told: dict[str, float] = {}

    def show(self, moment: Moment) -> None:
        """Say what is new."""
        for view in moment.seen.views:
            cause = f": {view.cause.node}: {view.cause.text}" if view.cause else ""
            self._say(view.name, f"{view.name}: {moment.seen.headline(view)}{cause}", moment)
            now, busy = time.monotonic(), serving_words(moment.gangs.get(view.name), view.request_limit)
            if busy and now - self._told.get(view.name, -LINE_EVERY_S) >= LINE_EVERY_S:
                self._told[view.name] = now
                self._line(f"{view.name}: {busy}", moment)
            for node in view.nodes:
                dead = [f"TP{rank.tp_rank}" for rank in node.ranks if rank.state is RankState.DEAD]
                gone = f"; dead: {', '.join(dead)}" if dead else ""
                self._say(f"{view.name}/{node.name}", f"{view.name}: {node.name}: {node_words(node)}{gone}", moment)

    def _say(self, about: str, words: str, moment: Moment) -> None:
        if self._said.get(about) != words:
            self._said[about] = words
            self._line(words, moment)

    def _line(self, words: str, moment: Moment) -> None:
        self._screen.verbatim(f"{clock_time(moment.taken_at)} {words}")
        sys.stdout.flush()


def load_cells(loads: Mapping[str, NodeLoad]) -> LoadCells:
    """What is in use, beside each node."""
    return lambda name: _cells(loads.get(name) or NodeLoad())


def _cells(load: NodeLoad) -> list[Text]:
    gauges = load.gauges
    if gauges is None or (gauges.error and not load.ports):
        others = [Text("") for _ in LOAD_TITLES[1:]]
        return [cell(_why_not_read(load)[:32], "yellow"), *others]
    power = [gpu.power_mw for gpu in gauges.gpus if gpu.power_mw is not None]
    return [
        _temperatures(gauges.gpus),
        Text(f"{sum(power) / 1e6:.2f} kW" if power else ""),
        Text(rail_words(load.ports)),
        _rail_errors(load.ports),
    ]


def _why_not_read(load: NodeLoad) -> str:
    if load.failure is not None:
        return load.failure.what
    return load.gauges.error if load.gauges is not None else ""


def _temperatures(gpus: Sequence[GpuGauges]) -> Text:
    known = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    slowed = any(slowed_by(gpu.clocks_event_reasons) for gpu in gpus)
    lost = sum(bool(gpu.error) for gpu in gpus)
    words = "-".join(map(str, sorted({min(known), max(known)}))) if known else ""
    if slowed:
        words += " slowed"
    if lost:
        return Text(f"{words} {lost} lost", "bold red")
    return Text(words, "bold yellow" if slowed or max(known, default=0) >= HOT_C else "")


def rail_words(ports: Iterable[PortRate]) -> str:
    """'1.24 / 1.19 GB/s' of all ports together; '' before the second reading."""
    rates = [(port.received_bytes_s, port.sent_bytes_s) for port in ports]
    known = [(rate, other) for rate, other in rates if rate is not None and other is not None]
    return " / ".join(f"{sum(way) / 1e9:.2f}" for way in zip(*known, strict=True)) + " GB/s" if known else ""


def _rail_errors(ports: Sequence[PortRate]) -> Text:
    down = [f"{port.device} down" for port in ports if port.up is False]
    grown = sum((Counter(port.grown) for port in ports), Counter[str]())
    new = [f"{name} +{more}" for name, more in grown.items()]
    if down or new:
        return cell(", ".join([*down, *new[:2]]), "bold yellow")
    return Text(str(sum(port.errors for port in ports)) if ports else "", "dim")


def serving_words(load: GangLoad | None, max_queued: int | None = None) -> str:
    """'312.4 tokens/s, 12 running, 3 of 81 queued, KV cache 41 %'; '' where the engine does not tell. max_queued: most
    that may wait, None for any number"""
    if load is None:
        return ""
    words = [] if load.tokens_s is None else [f"{load.tokens_s:.1f} tokens/s"]
    if load.prompt_tokens_s:
        words.append(f"{load.prompt_tokens_s:.0f} prompt tokens/s")
    limit = "" if max_queued is None else f" of {max_queued}"
    words += [f"{load.now.running} running", f"{load.now.queued}{limit} queued"]
    words += [] if load.now.cache_used is None else [f"KV cache {100 * load.now.cache_used:.0f} %"]
    if drafts := draft_words(load.now):
        words.append(drafts)
    return ", ".join(words)


def draft_words(busy: Serving | None) -> str:
    """'1.85 tokens a step'; '' without speculative decoding, and where the engine does not tell."""
    if busy is None or busy.accept_length is None:
        return ""
    return f"{busy.accept_length:.2f} tokens a step"


def gpus_table(view: GangView, loads: Mapping[str, NodeLoad]) -> Table:
    """A row a GPU of a gang, for `status --wide`. W, GiB: used and limit; ECC: errors, corrected + uncorrected."""
    titles = ("node", "GPU", "TP", "°C", "W", "MHz", "%", "GiB", "ECC", "slowed by")
    table = plain_table(*titles, left=titles)
    for node in view.nodes:
        ranks = {rank.gpu: str(rank.tp_rank) for rank in node.ranks}
        gauges = loads.get(node.name, NodeLoad()).gauges
        for gpu in gauges.gpus if gauges is not None else ():
            slowed = ", ".join(slowed_by(gpu.clocks_event_reasons))
            table.add_row(
                cell(node.name),
                str(gpu.index),
                ranks.get(gpu.index, ""),
                _figure(gpu.temperature_c),
                _figure(gpu.power_mw, 1000, of=gpu.power_limit_mw),
                _figure(gpu.sm_clock_mhz),
                _figure(gpu.utilization_percent),
                _figure(gpu.memory_used_bytes, 1 << 30, 1, of=gpu.memory_total_bytes),
                _ecc(gpu),
                cell(gpu.error or slowed, "bold red" if gpu.error else "bold yellow"),
            )
    return table


def _figure(value: int | None, unit: int = 1, digits: int = 0, *, of: int | None = None) -> str:
    """'288/350': in its unit, with its limit where there is one; '' where it is not known."""
    limit = f"/{of / unit:.{digits}f}" if of else ""
    return "" if value is None else f"{value / unit:.{digits}f}{limit}"


def _ecc(gpu: GpuGauges) -> str:
    corrected, uncorrected = gpu.ecc_corrected, gpu.ecc_uncorrected
    if corrected is None and uncorrected is None:
        return ""
    return f"{corrected or 0}+{uncorrected or 0}" if corrected or uncorrected else "none"
