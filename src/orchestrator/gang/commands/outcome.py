"""What the verbs that start and stop gangs show: how far it has come, as a live table on a terminal, else a line for
every change; what would be done; an interruption; the rooms' checks of gangs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.progress import LivePicture
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.rules.support.registry import grouped, who
from orchestrator.gang.commands.gangs import bar, node_words, phase_words, styled
from orchestrator.gang.overview import state_words
from orchestrator.gang.steps.changes import GangRehearsal
from orchestrator.gang.steps.start_time import StartClock, furthest_behind
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.model.per_node import collected
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.protocol.errors import Exit
from orchestrator.protocol.severity import Severity


def add_dry_run(parser: argparse.ArgumentParser, what: str = "show what would be done; change nothing") -> None:
    """--dry-run."""
    parser.add_argument("--dry-run", action="store_true", help=what)


def add_all_at_once(parser: argparse.ArgumentParser) -> None:
    """--all-at-once, of a verb that changes one gang after the other anyway."""
    parser.add_argument(
        "--all-at-once",
        action="store_true",
        help="do not wait while another command changes a gang behind the router; requests may fail",
    )


def show_rehearsal(gangs: Sequence[GangRehearsal], screen: Screen) -> int:
    """A line a gang, or one document."""
    if screen.as_json:
        keys = ("state", "plan_id", "then", "what")
        rehearsed = [{"name": gang.gang, **{key: getattr(gang, key) for key in keys}} for gang in gangs]
        screen.json({"dry_run": True, "gangs": rehearsed})
        return Exit.DONE
    screen.show(*(f"{gang.gang} ({gang.state}): {gang.what}" for gang in gangs))
    screen.show("nothing was changed" if gangs else "no gang is affected; nothing was changed")
    return Exit.DONE


def interrupted(screen: Screen) -> int:
    """Ctrl-C while gangs restart."""
    screen.say("detached: gangs that were started continue on their own; check with `l40s-deploy status`")
    screen.say("  fix: run `l40s-deploy up` to finish")
    return Exit.INTERRUPTED


def checks_json(checks: Sequence[Any]) -> dict[str, Any]:
    """Keys of the verb's document, of what became of the rooms' checks (the hook after_ready of orchestrator.rooms)."""
    return {key: value for check in checks for key, value in check.as_json().items()}


def say_checks(checks: Sequence[Any], screen: Screen) -> int:
    """On stderr; the first exit code that is not 0."""
    codes = [check.say(screen) for check in checks]
    return next((code for code in codes if code != Exit.DONE), int(Exit.DONE))


_LINE_EVERY_S = 10.0
"""The longest that nothing is said about a gang that starts where stderr is no terminal."""


def _what_it_runs(gang: GangPlan) -> str:
    return f"{gang.model} by {gang.stack}, {gang.layout} on {gang.layout.nnodes} x {gang.layout.gpus_per_node} GPUs"


class RisingProgress(LivePicture):
    """The workflow's watcher: a live table on a terminal, else one line for every change of phase."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._said: dict[tuple[str, str], str] = {}
        self._told: dict[str, float] = {}
        self._clock = StartClock()

    def planned(self, plan: Plan) -> None:
        """Say what will run."""
        self._clock.planned(plan)
        alike = collected((_what_it_runs(gang), gang.name) for gang in plan.gangs)
        for words, names in alike.items():
            runs = "runs" if len(names) == 1 else "run"
            self.say(f"plan {plan.plan_id}: {', '.join(names)} {runs} {words}")
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
                self._say_news(view.name, node)
            self._say_trouble(view)
            if view.state.loads:
                self._say_pace(view)

    def _say_news(self, gang: str, node: NodeView) -> None:
        """Where there is no table: a change."""
        key, place = (gang, node.name), f"{node.state} {node.phase.name}".strip()
        before = self._said.get(key)
        if place != before and (before is not None or place not in ("absent", "stopped", "failed")):
            self.say(f"{gang}: {node.name}: {node_words(node)}")
            self._told[gang] = time.monotonic()
        self._said[key] = place

    def _say_trouble(self, view: GangView) -> None:
        """Where there is no table: that what runs is degraded, once, and that it is so no longer."""
        key, place = (view.name, ""), state_words(view) if view.state is GangState.DEGRADED else ""
        if place != self._said.get(key, ""):
            self.say(f"{view.name}: {_degraded(view) or view.state.value}")
        self._said[key] = place

    def _say_pace(self, view: GangView) -> None:
        """After some time without a change: where the node that is furthest behind is, and how long it still takes."""
        now = time.monotonic()
        node = furthest_behind(view.nodes)
        if node is None or now - self._told.setdefault(view.name, now) < _LINE_EVERY_S:
            return
        self._told[view.name] = now
        words = [f"for {node.phase_s:.0f} s", *filter(None, [self._clock.left(view.name, node)])]
        self.say(f"{view.name}: {node.name}: {phase_words(node)}: {', '.join(words)}")


def _degraded(view: GangView) -> str:
    """In what way, and the cause where it is known; '' for any other state."""
    if view.state is not GangState.DEGRADED:
        return ""
    cause = f": {view.cause.node}: {view.cause.text}" if view.cause is not None else ""
    return f"{state_words(view)}{cause}"


def progress(
    views: Sequence[GangView], left: Callable[[str, NodeView], str] = lambda _gang, _node: ""
) -> RenderableType:
    """Starting gangs, shown while the command waits. left: a node's remaining time as text, as far as it is known"""
    blocks: list[RenderableType] = []
    for view in views:
        table = Table.grid(padding=(0, 2))
        for node in view.nodes:
            table.add_row(
                Text(printable(node.name), "bold"),
                styled(node.state),
                Text(phase_words(node)),
                bar(node),
                Text(f"{sum(rank.state == 'alive' for rank in node.ranks)}/{len(node.ranks)} ranks"),
                Text(f"{node.started_s:.0f} s" if node.started_s else "", "dim"),
                Text(left(view.name, node)),
            )
        blocks += [Text(f"{printable(view.name)}: {printable(_degraded(view) or view.state.value)}"), table]
        if view.progress:
            blocks.append(Text(printable(view.progress), "yellow"))
    return Group(*blocks)
