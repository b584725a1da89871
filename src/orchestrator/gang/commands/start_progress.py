"""What is shown while gangs start: a live table on a terminal, else a line for every change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.progress import LivePicture
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.rules.support.registry import grouped, who
from orchestrator.gang.commands.gangs import STYLES, bar, node_words, phase_words
from orchestrator.gang.steps.start_time import StartClock
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.finding import Severity
from orchestrator.model.plan import Plan

if TYPE_CHECKING:  # rich costs 60 ms: lines do without
    from rich.console import RenderableType

_LINE_EVERY_S = 30.0
"""Between two lines about one node where stderr is no terminal."""


class RisingProgress(LivePicture):
    """The workflow's watcher: a live table on a terminal, else one line for every change of phase."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._said: dict[tuple[str, str], str] = {}
        self._told: dict[tuple[str, str], float] = {}
        self._clock = StartClock()

    def planned(self, plan: Plan) -> None:
        """Say what will run."""
        self._clock.planned(plan)
        for gang in plan.gangs:
            degrees = f"{gang.layout} on {gang.layout.nnodes} x {gang.layout.gpus_per_node} GPUs"
            self.say(f"plan {plan.plan_id}: {gang.name} runs {gang.model} by {gang.stack}, {degrees}")
        nodes = sum(len(gang.nodes) for gang in plan.gangs)
        losses = [group for group in grouped(plan.findings) if group.finding.severity is Severity.SLOW]
        for group in losses:
            place = f"{who(group.nodes, nodes)}: " if group.finding.node else ""
            self.say(f"slow: {group.finding.id}: {place}{group.finding.title}")
        if losses:
            self.say("  what these cost, and the fixes: `l40s-deploy doctor`")

    def step(self, gang: str, words: str) -> None:
        """Say which step begins; words that begin with the gang are not led by it again."""
        self.say(words if words.startswith(f"{gang} ") else f"{gang}: {words}")

    def seen(self, views: Sequence[GangView]) -> None:
        """Show where every node is."""
        self._clock.seen(views)
        if self._live is not None:
            self._live.update(progress(views, self._clock.left))
            return
        for view in views:
            for node in view.nodes:
                self._say_change(view.name, node)
                self._say_time(view.name, node)

    def _say_change(self, gang: str, node: NodeView) -> None:
        place = f"{node.state} {node.phase.name}".strip()
        before = self._said.get((gang, node.name))
        if place != before and (before is not None or place not in ("absent", "stopped", "failed")):
            self.say(f"{gang}: {node.name}: {node_words(node)}")
        self._said[gang, node.name] = place

    def _say_time(self, gang: str, node: NodeView) -> None:
        """Where there is no table: how long it still takes, now and then."""
        now = time.monotonic()
        if now - self._told.setdefault((gang, node.name), now) >= _LINE_EVERY_S and (
            words := self._clock.left(gang, node)
        ):
            self._told[gang, node.name] = now
            self.say(f"{gang}: {node.name}: {phase_words(node)}: {words}")


def progress(
    views: Sequence[GangView], left: Callable[[str, NodeView], str] = lambda _gang, _node: ""
) -> RenderableType:
    """Starting gangs, shown while the command waits. left: a node's remaining time as text, as far as it is known"""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    blocks: list[RenderableType] = []
    for view in views:
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(7):
            table.add_column()
        for node in view.nodes:
            table.add_row(
                Text(printable(node.name), "bold"),
                Text(node.state, STYLES.get(node.state, "")),
                Text(phase_words(node)),
                bar(node),
                Text(f"{sum(rank.state == 'alive' for rank in node.ranks)}/{len(node.ranks)} ranks"),
                Text(f"{node.started_s:.0f} s" if node.started_s else "", "dim"),
                Text(left(view.name, node)),
            )
        blocks += [Text(f"{printable(view.name)}: {view.state.value}"), table]
        if view.progress:
            blocks.append(Text(printable(view.progress), "yellow"))
    return Group(*blocks)
