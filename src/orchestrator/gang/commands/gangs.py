"""Gangs on the screen: the table of nodes, the grid of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.screen import printable
from orchestrator.cli.tables import cell, plain_table
from orchestrator.gang.operations import sentence
from orchestrator.gang.overview import Overview, RouterGlance, degraded_reason, state_words
from orchestrator.gang.pace import took
from orchestrator.gang.view import OUTSIDE, GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.model.per_node import collected
from orchestrator.model.words import counted
from orchestrator.protocol.report import Cause, RankReport, RankState

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
MOST_EVIDENCE = 5
"""Sentences on a hang that the screen has room for."""


LOAD_TITLES = ("GPU °C", "power", "rails in / out", "rail errors")
LoadCells = Callable[[str], Sequence[Text]]
"""Cells below LOAD_TITLES, of a node by its name."""


def gang_block(
    view: GangView,
    router: RouterGlance | None = None,
    loads: LoadCells | None = None,
    busy: str = "",
    *,
    state: str = "",
    remarks: bool = False,
    most_remarks: int | None = None,
) -> list[RenderableType]:
    """One gang for `status`: headline, cause, nodes, ranks, remarks.

    loads: of what is in use on each node, where that is known; busy: the engine's load, as text; remarks: all
    of them, of a gang that is well too; state: its headline's, of whoever sees more than the gang itself;
    most_remarks: no more than so many of a gang that is not well; None for all
    """
    blocks: list[RenderableType] = [_headline(view, state or state_words(view, degraded_reason(view)))]
    if view.cause is not None:
        blocks += cause_lines(view.cause, folded=len(view.secondary))
    blocks += lines([_service_words(view, router)])
    start = took(node.began for node in view.nodes) if view.serves else None
    proved = f"in use, by the engine's log: {'; '.join(view.proved)}" if view.proved else ""
    blocks += lines([f"start: {start.words}" if start else "", _least_free(view), proved], "dim")
    blocks += lines([busy], "bold")
    blocks.append(nodes_table(view, loads))
    blocks += lines([*transport_words(view), view.over_tcp], "bold yellow")
    most = 0 if view.state is GangState.READY and not remarks else most_remarks
    blocks += lines([view.progress, *_remark_lines(view.remarks, most)], "yellow")
    return blocks


def _remark_lines(remarks: Sequence[str], most: int | None) -> list[str]:
    """So many of them, and how many are left out; most: None for all"""
    shown = remarks if most is None else remarks[:most]
    left = len(remarks) - len(shown)
    more = counted(left, "more remark" if shown else "remark")
    return [*shown, *([f"{more}: `l40s-deploy status --remarks`"] if left else [])]


def _least_free(view: GangView) -> str:
    """'' where nothing serves, or where it was not read."""
    if view.least_free_bytes is None or not view.serves:
        return ""
    return f"least free GPU memory in this run: {view.least_free_bytes / (1 << 30):.1f} GiB"


def lines(texts: Iterable[str], style: str = "") -> list[Text]:
    """A line for each text that is not empty."""
    return [Text(printable(text), style) for text in texts if text]


def _headline(view: GangView, state: str) -> Text:
    head = Text.assemble((printable(view.name), "bold"), " ", styled(state))
    return head.append(f"  {printable(view.model)} by {printable(view.stack)}") if view.model else head


def _service_words(view: GangView, router: RouterGlance | None) -> str:
    """Where the gang answers, and whether it does; '' where nothing can answer."""
    if not view.service_url or view.state in _NO_SERVICE:
        return ""
    waiting = "not answering" if view.state is GangState.DEGRADED else "not answering yet"
    word = "healthy" if view.service_healthy else waiting
    return f"service {view.service_url} ({word}{_routed(view, router)})"


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


def around_block(seen: Overview) -> list[Text]:
    """What is around the gangs, for `status`: the router's state and address, and which gangs it sends requests to;
    what a killed command has left half done."""
    return [
        *(_router_lines(seen.router, seen) if seen.router else ()),
        *lines(sentence(seen.interrupted), "bold yellow"),
    ]


def _router_lines(router: RouterGlance, seen: Overview) -> list[Text]:
    state = router.condition.value if router.condition is not None else "unreachable"
    head = Text.assemble(("router", "bold"), " ", styled(state), f"  {printable(router.url)}")
    if parts := [f"{word}: {', '.join(names)}" for word, names in _placed(router, seen).items() if names]:
        head.append(f"  {printable('; '.join(parts))}")
    head.append(limit_words(router.request_limit))
    wrong = router.error
    below = [f"  {wrong.where}: {wrong.what} (fix: {wrong.fix})"] if wrong else []
    below += [f"  {words}" for words in router.remarks]
    return [head, *lines(below, "yellow")]


def limit_words(limit: int | None) -> str:
    """Of a router that lets in so many requests at once, behind its address; '' where nobody limits them."""
    return "" if limit is None else f"  at most {limit:,} requests at once"


def _was_read(view: GangView) -> bool:
    return bool(view.service_url) or not view.unreachable


def _placed(router: RouterGlance, seen: Overview) -> dict[str, list[str]]:
    """Gangs by the place that they have in the router, those too that were not looked at, and workers that are none."""
    urls = {**seen.stated, **router.gangs_by_url(seen.views)}
    workers = router.workers or ()
    placed = {view.name: router.place(view.service_url) for view in seen.views if _was_read(view)}
    placed |= {urls[worker.url]: router.place(worker.url) for worker in workers if worker.url in urls}
    gangs = {place: [name for name, its in placed.items() if its == place] for place in ("in", "unhealthy", "out")}
    strange = "of a gang that was not read, or not of this inventory" if seen.unstated else "not of this inventory"
    return {**gangs, strange: [worker.url for worker in workers if worker.url not in urls]}


def transport_words(view: GangView) -> list[str]:
    """Where traffic does not travel as planned: one line for all nodes that report the same."""
    nodes = collected(((finding.id, finding.title, finding.effect), finding.node) for finding in view.transport)
    return [f"{name}: {', '.join(where)}: {title}. {effect}" for (name, title, effect), where in nodes.items()]


def cause_lines(cause: Cause, *, folded: int = 0) -> list[Text]:
    """The one cause: where, what, the lines that show it, the fix."""
    rank = f" TP{cause.tp_rank}" if cause.tp_rank is not None else ""
    place = cause.node if rank and f" {cause.text}".startswith(f"{rank} ") else cause.node + rank
    more = f"  ({counted(folded, 'later error')} followed from it; see --json)" if folded else ""
    return [
        Text.assemble(("cause: ", "bold red"), printable(f"{place}: {cause.text}")),
        *lines(_hang_words(cause)),
        *lines((f"  | {line}" for line in cause.lines), "dim"),
        *lines([f"  fix: {cause.fix}" if cause.fix else ""]),
        *lines([more], "dim"),
    ]


def _hang_words(cause: Cause) -> list[str]:
    """Which hang it is, and what shows it, in a few lines."""
    if cause.hang is None:
        return []
    evidence = cause.hang.evidence
    more = [f"  - and {len(evidence) - MOST_EVIDENCE} more: see --json"] if len(evidence) > MOST_EVIDENCE else []
    head = f"  {cause.hang.name} (`l40s-deploy doctor --explain {cause.hang.name}`)"
    return [head, *(f"  - {sentence}" for sentence in evidence[:MOST_EVIDENCE]), *more]


def nodes_table(view: GangView, loads: LoadCells | None = None) -> Table:
    """One row per node: its phase, and a grid of its ranks with their GPU memory; with loads, what is in use there."""
    nodes = (*view.nodes, *view.spares)
    phases, loaded = any(map(phase_words, nodes)), loads is not None
    steps = loaded and any(node.phase.of for node in view.nodes)
    titles = ["rank", "node", "state"]
    if phases:
        titles.append("phase")
    if steps:
        titles.append("")
    titles += ["TP ranks", "GPU GiB"]
    if loaded:
        titles += LOAD_TITLES
    table = plain_table(*titles, left=titles)
    for node in nodes:
        table.add_row(
            "-" if node.node_rank == OUTSIDE else str(node.node_rank),
            cell(node.name),
            styled(node.state),
            *([Text(phase_words(node))] if phases else []),
            *([bar(node)] if steps else []),
            _grid(node.ranks),
            _memory(node.ranks),
            *(loads(node.name) if loads is not None else ()),
        )
    return table


def styled(state: str) -> Text:
    """A state in its colour."""
    return Text(state, STYLES.get(state.partition(" ")[0], ""))


def node_words(node: NodeView) -> str:
    """'starting, weights 41/163'; 'ready'."""
    phase = phase_words(node)
    return f"{node.state}, {phase}" if phase not in ("", node.state) else node.state


def phase_words(node: NodeView) -> str:
    """'weights 41/163'."""
    return printable(node.phase.name + (f" {node.phase.step}/{node.phase.of}" if node.phase.of else ""))


def bar(node: NodeView) -> Text:
    """How far it is in a phase that has steps."""
    if not node.phase.of:
        return Text("".ljust(_BAR))
    done = min(_BAR, round(_BAR * node.phase.step / node.phase.of))
    return Text.assemble(("".ljust(done, "━"), "green"), ("".ljust(_BAR - done, "━"), "dim"))


def _grid(ranks: Sequence[RankReport]) -> Text:
    """'16-18 19x 20-23': ranks in a row that are in the same state as one."""
    parts = []
    for (_, state), row in groupby(enumerate(ranks), lambda one: (one[1].tp_rank - one[0], one[1].state)):
        first, *more = [rank.tp_rank for _, rank in row]
        mark, style = _RANKS[state]
        parts.append(Text(f"{first}-{more[-1]}{mark}" if more else f"{first}{mark}", style))
    return Text(" ").join(parts)


def _memory(ranks: Sequence[RankReport]) -> str:
    held = [rank.gpu_memory_bytes / (1 << 30) for rank in ranks if rank.gpu_memory_bytes]
    if not held:
        return ""
    least, most = min(held), max(held)
    return f"{least:.1f}" if most - least < 0.1 else f"{least:.1f}-{most:.1f}"
