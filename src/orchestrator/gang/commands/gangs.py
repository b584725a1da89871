"""Gangs on the screen: the table of nodes, the grid of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.cli.screen import printable
from orchestrator.gang.operations import sentence
from orchestrator.gang.overview import degraded_reason, state_words
from orchestrator.gang.pace import took
from orchestrator.gang.view import OUTSIDE, GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.model.per_node import collected
from orchestrator.protocol.report import Cause, RankReport, RankState

if TYPE_CHECKING:  # rich costs 60 ms: `status --json` does without
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from orchestrator.gang.overview import Overview, RouterGlance

STYLES = {
    "ready": "green",
    "starting": "yellow",
    "warming": "yellow",
    "armed": "cyan",
    "staged": "cyan",
    "draining": "cyan",
    "stopping": "cyan",
    "stopped": "dim",
    "absent": "dim",
    "degraded": "bold yellow",
    "silent": "bold yellow",
    "failed": "bold red",
    "unknown": "bold yellow",
    "dead": "bold red",
    "unreachable": "bold red",
    "left-out": "dim",
    "spare": "dim",
}
_NO_SERVICE = (GangState.ABSENT, GangState.UNKNOWN, GangState.FAILED, GangState.STAGED, GangState.ARMED)
"""Where nothing can answer yet, or any more."""
_RANKS = {
    RankState.ALIVE: ("", "green"),
    RankState.STOPPED: ("!", "bold yellow"),
    RankState.DEAD: ("x", "bold red"),
    RankState.EXPECTED: (".", "dim"),
}
"""A rank's mark and style."""
_BAR = 18


class NodeColumns(NamedTuple):
    """More columns of the table of nodes. cells: of a node by its name"""

    titles: Sequence[str]
    cells: Callable[[str], Sequence[Text]]


def gang_block(
    view: GangView,
    router: RouterGlance | None = None,
    loads: NodeColumns | None = None,
    busy: str = "",
    *,
    state: str = "",
    remarks: bool = False,
) -> list[RenderableType]:
    """One gang for `status`: headline, cause, nodes, ranks, remarks.

    loads: columns of what is in use on each node, where that is known; busy: the engine's load, as text; remarks: all
    of them, of a gang that is well too; state: its headline's, of whoever sees more than the gang itself
    """
    blocks: list[RenderableType] = [_headline(view, state or state_words(view, degraded_reason(view)))]
    if view.cause is not None:
        blocks += cause_lines(view.cause, folded=len(view.secondary))
    blocks += _said([_service_words(view, router)])
    blocks += _said([_start_words(view), _proved_words(view)], "dim")
    blocks += _said([busy], "bold")
    blocks.append(nodes_table(view, loads))
    blocks += _said([*transport_words(view), view.over_tcp], "bold yellow")
    folded = view.state is GangState.READY and view.remarks and not remarks
    count = f"{len(view.remarks)} remark{'s' * (len(view.remarks) > 1)}: `l40s-deploy status --remarks`"
    blocks += _said([view.progress, *([count] if folded else view.remarks)], "yellow")
    return blocks


def _said(texts: Iterable[str], style: str = "") -> list[Text]:
    """A line for each text that is not empty."""
    from rich.text import Text

    return [Text(printable(text), style) for text in texts if text]


def _headline(view: GangView, state: str) -> Text:
    from rich.text import Text

    head = Text.assemble((printable(view.name), "bold"), " ", (state, STYLES.get(state.partition(" ")[0], "")))
    return head.append(f"  {printable(view.model)} by {printable(view.stack)}") if view.model else head


def _service_words(view: GangView, router: RouterGlance | None) -> str:
    """Where the gang answers, and whether it does; '' where nothing can answer."""
    if not view.service_url or view.state in _NO_SERVICE:
        return ""
    waiting = "not answering" if view.state is GangState.DEGRADED else "not answering yet"
    word = "healthy" if view.service_healthy else waiting
    return f"service {view.service_url} ({word}{_routed(view, router)})"


def _start_words(view: GangView) -> str:
    """How long a serving gang's start took; '' where that is not known."""
    start = took(node.began for node in view.nodes) if view.serves else None
    return f"start: {start.words}" if start else ""


def _proved_words(view: GangView) -> str:
    return f"in use, by the engine's log: {'; '.join(view.proved)}" if view.proved else ""


def _routed(view: GangView, router: RouterGlance | None) -> str:
    """What the router says of a gang, to follow the gang's own state."""
    place = router.place(view.service_url) if router is not None else None
    worker = router.worker(view.service_url) if router is not None else None
    if place is None:
        return ""
    if worker is None:
        return "; not in the router"
    words = f"{worker.load} request" + ("" if worker.load == 1 else "s")
    return f"; in the router, {words}" if worker.healthy else "; unhealthy according to the router"


def router_block(seen: Overview) -> list[RenderableType]:
    """The router for `status`: its state and address, and which gangs it sends requests to."""
    from rich.text import Text

    router = seen.router
    if router is None:
        return []
    state = router.condition.value if router.condition is not None else "unreachable"
    head = Text.assemble(("router", "bold"), " ", (state, STYLES.get(state, "")), f"  {printable(router.url)}")
    gangs: dict[str, list[str]] = {"in": [], "unhealthy": [], "out": []}
    for view in seen.views:
        if (place := router.place(view.service_url)) is not None:
            gangs[place].append(view.name)
    known = {view.service_url.rstrip("/") for view in seen.views}
    strange = [one.url for one in router.workers or () if one.url not in known]
    parts = [f"{word}: {', '.join(names)}" for word, names in gangs.items() if names]
    parts += [f"not of this inventory: {', '.join(strange)}"] if strange else []
    if parts:
        head.append(f"  {printable('; '.join(parts))}")
    if router.error is None:
        return [head]
    return [head, *_said([f"  {router.error.where}: {router.error.what} (fix: {router.error.fix})"], "yellow")]


def interrupted_block(seen: Overview) -> list[RenderableType]:
    """What a killed command has left half done, for `status`."""
    return [*_said(sentence(seen.interrupted), "bold yellow")]


def transport_words(view: GangView) -> list[str]:
    """Where traffic does not travel as planned: one line for all nodes that report the same."""
    nodes = collected(((finding.id, finding.title, finding.effect), finding.node) for finding in view.transport)
    return [f"{name}: {', '.join(where)}: {title}. {effect}" for (name, title, effect), where in nodes.items()]


def cause_lines(cause: Cause, *, folded: int = 0) -> list[RenderableType]:
    """The one cause: where, what, the lines that show it, the fix."""
    from rich.text import Text

    rank = f" TP{cause.tp_rank}" if cause.tp_rank is not None else ""
    place = cause.node if rank and f" {cause.text}".startswith(f"{rank} ") else cause.node + rank
    lines: list[RenderableType] = [Text.assemble(("cause: ", "bold red"), printable(f"{place}: {cause.text}"))]
    lines += _said((f"  | {line}" for line in cause.lines), "dim")
    if cause.fix:
        lines += _said([f"  fix: {cause.fix}"])
    if folded:
        lines += _said([f"  ({folded} later error{'s' * (folded != 1)} followed from it; see --json)"], "dim")
    return lines


def nodes_table(view: GangView, loads: NodeColumns | None = None) -> Table:
    """One row per node: its phase, and a grid of its ranks with their GPU memory; with loads, what is in use there."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    nodes = (*view.nodes, *view.spares)
    steps = any(node.phase.of for node in view.nodes) and loads is not None
    phases = ["phase"] if any(map(phase_words, nodes)) else []
    titles = ["rank", "node", "state", *phases, *([""] if steps else []), "TP ranks", "GPU memory"]
    for title in (*titles, *(loads.titles if loads is not None else ())):
        table.add_column(title)
    for node in nodes:
        table.add_row(
            "-" if node.node_rank == OUTSIDE else str(node.node_rank),
            Text(printable(node.name)),
            Text(node.state, STYLES.get(node.state, "")),
            *([Text(phase_words(node))] if phases else []),
            *([bar(node)] if steps else []),
            _grid(node.ranks),
            Text(_memory(node.ranks)),
            *(loads.cells(node.name) if loads is not None else ()),
        )
    return table


def node_words(node: NodeView) -> str:
    """'starting, weights 41/163'; 'ready'."""
    phase = phase_words(node)
    return f"{node.state}, {phase}" if phase not in ("", node.state) else node.state


def phase_words(node: NodeView) -> str:
    """'weights 41/163', and how much the node has read into its page cache."""
    steps = f" {node.phase.step}/{node.phase.of}" if node.phase.of else ""
    words = node.phase.name + steps
    if node.cache is not None and node.cache.state == "reading" and node.cache.of:
        words += f"{', ' if words else ''}page cache {100 * node.cache.done // node.cache.of} %"
    return printable(words)


def bar(node: NodeView) -> Text:
    """How far it is in a phase that has steps."""
    from rich.text import Text

    if not node.phase.of:
        return Text(" " * _BAR)
    done = min(_BAR, round(_BAR * node.phase.step / node.phase.of))
    return Text.assemble(("━" * done, "green"), ("━" * (_BAR - done), "dim"))


def _grid(ranks: Sequence[RankReport]) -> Text:
    """'16-18 19x 20-23': ranks in a row that are in the same state as one."""
    from rich.text import Text

    parts = []
    rows = groupby(enumerate(ranks), lambda one: (one[1].tp_rank - one[0], one[1].state))
    for (_, state), row in rows:
        numbers = [rank.tp_rank for _, rank in row]
        mark, style = _RANKS[state]
        parts.append(Text(f"{span(numbers)}{mark}", style))
    return Text(" ").join(parts)


def span(ranks: Sequence[int]) -> str:
    """'16-23' of ranks in a row, else '0,2,4'."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _memory(ranks: Sequence[RankReport]) -> str:
    held = [rank.gpu_memory_bytes / (1 << 30) for rank in ranks if rank.gpu_memory_bytes]
    if not held:
        return ""
    least, most = min(held), max(held)
    return f"{least:.1f} GiB each" if most - least < 0.1 else f"{least:.1f} to {most:.1f} GiB"
