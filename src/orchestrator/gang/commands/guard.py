"""`l40s-deploy guard`: watch gangs; restart one that failed or hangs, without a dead node if that is asked for."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.cli.options import (
    add_duration,
    add_hung_after,
    add_install,
    add_timeout,
    add_usual_of_gangs,
    count,
    duration,
    read_again,
)
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line, install_unit
from orchestrator.cli.units import GUARD
from orchestrator.gang.commands.cluster import open_cluster
from orchestrator.gang.commands.outcome import RisingProgress
from orchestrator.gang.guarding import GuardAction, GuardDecision, Policy
from orchestrator.gang.steps.guard.guard import GuardedGang, guard
from orchestrator.gang.steps.guard.notice_hook import Hook
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.guard.rereading import InventoryWatch
from orchestrator.loading.secret_file import read_private_line
from orchestrator.loading.stamps import stamp_of
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import Exit
from orchestrator.rooms import answers


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    usual = Policy()
    add_usual_of_gangs(
        parser,
        "l40s-deploy guard --on-failed 'mail -s \"gang failed\" ops'",
        "l40s-deploy guard --degrade-after 10m --restore auto   # go on without a dead node",
        "l40s-deploy guard --on-ready https://example.org/hook --install",
        "l40s-deploy guard --on-failed @/etc/l40s/webhook   # an address with a secret token, read from a file",
    )
    parser.add_argument("--once", action="store_true", help="check once, act if needed, and exit")
    parser.add_argument(
        "--limit",
        type=count,
        default=usual.limit,
        metavar="N",
        help=f"give up after N restarts in a row, and only print the command after N returns (--restore auto) in a row"
        f" that did not last --stable ({usual.limit})",
    )
    pause, stable = usual.first_pause_s, usual.stable_s
    add_duration(parser, "--pause", f"wait before the second restart; doubles each time ({duration(pause)})", pause)
    add_duration(
        parser, "--stable", f"reset the restart count once a gang has been ready this long ({duration(stable)})", stable
    )
    add_timeout(parser)
    _add_degrade(parser)
    add_hung_after(parser)
    for option, when in (
        ("--on-ready", "command or http(s) address to call after a restart; @FILE: read it from a file of mode 600"),
        ("--on-failed", "the same, when the guard gives up, or a finding keeps it from restarting"),
    ):
        parser.add_argument(option, default="", metavar="HOOK", help=when)
    answers("options", "guard", parser)
    add_install(parser)


def _add_degrade(parser: argparse.ArgumentParser) -> None:
    """When it goes on with fewer nodes, and returns to all."""
    add_duration(
        parser,
        "--degrade-after",
        "start a failed gang without a node that did not answer for this long, or that has a stop finding: with a"
        " spare (l40s_role), else on fewer nodes with another layout if needed (default: wait for it)",
    )
    parser.add_argument(
        "--restore",
        choices=("ask", "auto"),
        default="ask",
        help="once all nodes of such a gang are back and doctor allows it: print the command that returns to all of"
        " them (ask), or return, with one restart (auto)",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when no gang was given up or left failed, 5 otherwise; it runs until Ctrl-C without --once."""
    inventory = open_cluster(args, screen)
    shown = GuardProgress(screen)
    path, newest = inventory.path, [inventory]
    notifier = next(iter(answers("notifier", inventory, lambda words: shown.say(f"notify: {words}"))), None)
    request = GuardRequest(
        notifier=notifier,
        gangs=tuple(args.gang),
        once=args.once,
        policy=_policy(args),
        restores=args.restore == "auto",
        on_ready=_hook("--on-ready", args.on_ready),
        on_failed=_hook("--on-failed", args.on_failed),
        command=command_line(),
        hung_after_s=args.hung_after,
        timeout_s=args.timeout,
        check=next(iter(answers("guard_event", args)), None),
        reread=InventoryWatch(partial(stamp_of, path), lambda: read_again(path)),
        renewed=newest.append,
    )
    if args.install:
        return install_unit(GUARD, args, inventory, screen)
    with ExitStack() as beside:
        metrics = answers("metrics", args, lambda: newest[-1])
        for context in (*metrics, shown, *([notifier] if notifier is not None else [])):
            beside.enter_context(context)
        left = guard(inventory, request, shown)
    if args.json:
        screen.json({"gangs": [_as_json(gang) for gang in left]})
    failed = any(gang.decision.do is GuardAction.GIVE_UP or gang.view.state is GangState.FAILED for gang in left)
    return Exit.GANG_FAILED if failed else 0


def _policy(args: argparse.Namespace) -> Policy:
    return Policy(
        limit=args.limit,
        first_pause_s=args.pause,
        stable_s=args.stable,
        degrade_after_s=args.degrade_after,
        return_limit=args.limit,
    )


def _as_json(gang: GuardedGang) -> dict[str, Any]:
    """What became of one, as it ended."""
    return {
        "name": gang.view.name,
        "state": gang.view.state.value,
        "decision": gang.decision.do.value,
        "why": gang.decision.why,
    }


def _hook(flag: str, asked: str) -> Hook:
    """As typed, or from the file that was named."""
    return Hook(read_private_line(Path(asked[1:]), what="the hook", where=flag) if asked.startswith("@") else asked)


_LEADS = {
    GuardAction.RESTART: "restarting it: ",
    GuardAction.GIVE_UP: "giving up: ",
    GuardAction.DEGRADE: "starting it without {}: ",
    GuardAction.REPLAN: "planning it anew: ",
    GuardAction.RETURN: "checking whether it can run as before: ",
}
"""What is done, before why; the others say it themselves."""


class GuardProgress(RisingProgress):
    """What `up` shows, with the time and what is decided."""

    def decided(self, gang: str, decision: GuardDecision) -> None:
        """A line for each change."""
        if decision.why or decision.do is not GuardAction.NOTHING:
            lead = _LEADS.get(decision.do, "").format(", ".join(decision.without) or "some nodes")
            self.say(f"{time.strftime('%H:%M:%S')} {gang}: {lead}{decision.why}")
