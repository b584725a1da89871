"""`status --watch`: one picture that is drawn again where something changed; lines where there is no terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.commands.gangs import gang_block, interrupted_block, node_words, router_block
from orchestrator.gang.commands.loads import gpus_table, load_columns, serving_words
from orchestrator.gang.steps.status.live import Moment, Watching, live_json
from orchestrator.gang.timeline import TimelineEvent
from orchestrator.gang.view import GangView
from orchestrator.protocol.report import RankState

if TYPE_CHECKING:  # rich costs 60 ms: lines do without
    from rich.console import RenderableType

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
