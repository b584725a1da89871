"""`status --watch`: one picture that is drawn again where something changed; lines where there is no terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.commands.gangs import NodeColumns, gang_block, interrupted_block, node_words, router_block
from orchestrator.gang.rates import PortRate
from orchestrator.gang.steps.status.live import HOT_C, GangLoad, Moment, NodeLoad, Watching, live_json
from orchestrator.gang.timeline import TimelineEvent
from orchestrator.gang.view import GangView
from orchestrator.protocol.gauges import GpuGauges, slowed_by
from orchestrator.protocol.report import RankState

if TYPE_CHECKING:  # rich costs 60 ms: lines do without
    from rich.console import RenderableType
if TYPE_CHECKING:  # rich costs 60 ms: `status --json` does without
    from rich.table import Table
    from rich.text import Text


DRAW_S = 0.5
LINE_EVERY_S = 30.0
"""Between two lines about a gang of which nothing has changed."""
EVENTS = 8
TABLE_WIDTH = 220
_CLEAR_BELOW, _HOME, _ERASE_LINE = "\x1b[J", "\x1b[H", "\x1b[K"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""xterm's other screen, without a cursor, and back to what was there before."""


def watch(source: Watching, screen: Screen, *, wide: bool, until: Callable[[], bool] = lambda: False) -> Moment:
    """Show moments until Ctrl-C, or `until`; returns the last one."""
    show: Callable[[Moment], None]
    if screen.as_json:
        show = _documents
    elif sys.stdout.isatty() and screen.moves:
        picture = WatchScreen(screen, wide=wide)
        with picture:
            return _loop(source, picture.draw, until)
    else:
        show = ChangeLines(screen).show
    return _loop(source, show, until)


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
        size = os.get_terminal_size(sys.stdout.fileno())
        rows = _rows(size.lines, self._rendered(moment, size.columns))
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

    def _rendered(self, moment: Moment, width: int) -> list[str]:
        """Sentences are wrapped; rows of a table are cut, so that each stays one line."""
        from rich.table import Table

        rows: list[str] = []
        for block in picture(moment, wide=self._wide):
            is_table = isinstance(block, Table)
            lines = self._lines_of(block, max(width, TABLE_WIDTH) if is_table else width)
            rows += [self._cut(line, width) for line in lines] if is_table else lines
        return rows

    def _lines_of(self, block: RenderableType, width: int) -> list[str]:
        console = self._screen.out
        with console.capture() as kept:
            console.print(block, width=width, crop=False)
        return kept.get().rstrip("\n").split("\n")

    def _cut(self, line: str, width: int) -> str:
        from rich.text import Text

        text = Text.from_ansi(line.rstrip())
        text.rstrip()
        text.truncate(width)
        return self._lines_of(text, TABLE_WIDTH)[0]

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _rows(height: int, rows: list[str]) -> list[str]:
    """The rows that fit, and a note on how many do not."""
    if len(rows) <= height:
        return rows
    return [*rows[: height - 1], f"... {len(rows) - height + 1} more lines: enlarge the terminal, or name one gang"]


def picture(moment: Moment, *, wide: bool) -> list[RenderableType]:
    """All gangs, the router, and what happened last, as `status` has them and with what moves."""
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(moment.taken_at))
    blocks: list[RenderableType] = [Text(f"{clock}  Ctrl-C ends", "dim")]
    for view in moment.seen.views:
        busy = serving_words(moment.gangs.get(view.name))
        state = moment.seen.headline(view)
        blocks += gang_block(view, moment.seen.router, load_columns(moment.nodes), busy, state=state)
        if wide:
            blocks.append(gpus_table(view, moment.nodes))
        blocks += [Text(line, "dim") for line in events(moment.events.get(view.name, ()))]
    return [*blocks, *router_block(moment.seen), *interrupted_block(moment.seen)]


def events(happened: tuple[TimelineEvent, ...]) -> list[str]:
    """The last of them, oldest first."""
    return [
        printable(f"{time.strftime('%H:%M:%S', time.localtime(one.at))} {one.node}: {one.words}")
        for one in happened[-EVENTS:]
    ]


class ChangeLines:
    """One line for every change of a gang or of a node, and one now and then while nothing changes."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._said: dict[str, str] = {}
        self._told: dict[str, float] = {}

    def show(self, moment: Moment) -> None:
        """Say what is new."""
        for view in moment.seen.views:
            self._gang(view, moment)
            for node in view.nodes:
                dead = [f"TP{rank.tp_rank}" for rank in node.ranks if rank.state is RankState.DEAD]
                gone = f"; dead: {', '.join(dead)}" if dead else ""
                words = f"{view.name}: {node.name}: {node_words(node)}{gone}"
                self._say(f"{view.name}/{node.name}", words, moment)

    def _gang(self, view: GangView, moment: Moment) -> None:
        cause = f": {view.cause.node}: {view.cause.text}" if view.cause else ""
        state = f"{view.name}: {moment.seen.headline(view)}{cause}"
        self._say(view.name, state, moment)
        now = time.monotonic()
        busy = serving_words(moment.gangs.get(view.name))
        if busy and now - self._told.get(view.name, -LINE_EVERY_S) >= LINE_EVERY_S:
            self._told[view.name] = now
            self._line(f"{view.name}: {busy}", moment)

    def _say(self, about: str, words: str, moment: Moment) -> None:
        if self._said.get(about) != words:
            self._said[about] = words
            self._line(words, moment)

    def _line(self, words: str, moment: Moment) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(moment.taken_at))
        self._screen.verbatim(f"{clock} {words}")
        sys.stdout.flush()


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
