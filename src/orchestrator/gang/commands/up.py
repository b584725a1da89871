"""`l40s-deploy up`: start a model on every gang; ready to serve, or one cause and nothing left behind."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.cli.options import add_accept, add_hung_after, add_timeout, add_usual, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands.gangs import gang_block
from orchestrator.gang.commands.outcome import RisingProgress, add_all_at_once, checks_json, say_checks, show_rehearsal
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps.operation import AskedOperation, Operation, connected
from orchestrator.gang.steps.restart import rehearse_resume, resume
from orchestrator.gang.steps.up import rehearse, up
from orchestrator.gang.steps.up_operation import BeforeGoCheck, GangGate, UpRequest, UpResult
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import without
from orchestrator.model.inventory import Inventory
from orchestrator.planning.commands import plan_options
from orchestrator.planning.plan_file import plan_json
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import Exit, Undone
from orchestrator.rooms import answers


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64",
        "l40s-deploy up GLM-4.6-FP8                       # the same as --model GLM-4.6-FP8",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --for 128",
        "l40s-deploy up --model MiniMax-M2 --replicas        # one engine per node, behind the router",
        "l40s-deploy up --model DeepSeek-R1-Channel-INT8 --stack sglang-0.4.4-l40s --dry-run",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 -- --mem-fraction-static 0.8",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --without l40s-2   # l40s-2 does not answer",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --nettest --nettest-min 70",
        "l40s-deploy up --plan plan.json --replace        # replace the running plan of the only gang",
        "l40s-deploy up --plan plan.json --gate           # one gang first; if it is worse, back to what served",
        "l40s-deploy up                                   # finish what an interrupted command began",
    )
    plan_options.add_plan_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show the plan, like `l40s-deploy plan`")
    add_timeout(parser, "give up after this time")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also refuse on slow findings, and if traffic does not use the planned transport once running",
    )
    add_accept(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace a running gang even if this causes downtime",
    )
    add_all_at_once(parser)
    add_hung_after(parser)
    answers("options", "up", parser)
    parser.add_argument(
        "--undo-on-interrupt",
        action="store_true",
        help="on Ctrl-C, stop what was started (default: detach and leave it running)",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every gang is ready; 7 when accepted answers of `golden` have changed; 130 when interrupted."""
    plan_options.take_names(args)
    before_go = tuple(answers("before_go", args))
    gate = next(iter(answers("gate", args)), None)
    if not (plan_options.asks(args) or args.replace or args.strict or before_go or gate):
        return _finish(args, screen)
    wanted = plan_options.request_of(args)
    with connected(without(open_inventory(args, screen), wanted.without)) as nodes:
        operation = nodes.to_start(wanted.gangs, replicas=wanted.replicas)
        wanted = plan_options.for_its_load(args, wanted, operation.inventory, screen)
        wanted = plan_options.with_its_draft(args, wanted, operation.inventory)
        return _serve(args, operation, _request(args, wanted, operation.inventory, before_go, gate), screen)


def _serve(args: argparse.Namespace, operation: AskedOperation, request: UpRequest, screen: Screen) -> int:
    inventory = operation.inventory
    if args.dry_run:
        with RisingProgress(screen) as shown:
            plan = rehearse(operation, request, shown)
        screen.json(plan_json(plan)) if args.json else plan_options.show_plan(plan, screen)
        return Exit.DONE
    try:
        with RisingProgress(screen) as shown:
            outcome = up(operation, request, shown)
    except KeyboardInterrupt as interrupted:
        return _interrupted(interrupted, request, screen)
    started = any(view.name not in outcome.ready_before for view in outcome.views)
    checks = answers("after_ready", operation, outcome.views, args, screen) if started else []
    _show(outcome, screen, checks_json(checks), request)
    if not args.json:
        screen.show(*_clients_use(inventory, outcome.views, outcome.router_url))
    code = say_checks(checks, screen)
    if outcome.failure is not None:  # that they do serve is shown first
        raise outcome.failure
    return code


def _request(
    args: argparse.Namespace,
    wanted: PlanRequest,
    inventory: Inventory,
    before_go: tuple[BeforeGoCheck, ...],
    gate: GangGate | None,
) -> UpRequest:
    return UpRequest(
        plan=wanted,
        command=command_line(),
        timeout_s=args.timeout,
        undo_on_interrupt=args.undo_on_interrupt,
        accept=tuple(args.accept),
        strict=args.strict,
        replace=args.replace,
        all_at_once=args.all_at_once,
        hung_after_s=args.hung_after,
        before_go=before_go,
        gate=gate,
        fewer=any(gang.short for gang in inventory.gangs),
    )


def _clients_use(inventory: Inventory, views: Iterable[GangView], router_url: str) -> list[str]:
    """Where requests go: to the router where there is one, else to each gang that serves."""
    serving = [view for view in views if view.serves]
    if inventory.router is not None and serving:
        return [f"clients use {router_url or inventory.router.url} (the router)"]
    return [f"clients use {view.service_url} ({view.name})" for view in serving if view.service_url]


def _finish(args: argparse.Namespace, screen: Screen) -> int:
    """Without a model: what an interrupted command had begun."""
    with connected(open_inventory(args, screen)) as nodes:
        return _resume(args, nodes.as_standing(), screen)


def _resume(args: argparse.Namespace, operation: Operation, screen: Screen) -> int:
    if args.dry_run:
        return show_rehearsal(rehearse_resume(operation, args.gang), screen)
    try:
        with RisingProgress(screen) as shown:
            views, left = resume(operation, args.gang, shown, command=command_line(), timeout_s=args.timeout)
    except KeyboardInterrupt:
        screen.say("detached: gangs that were started continue on their own; repeat `l40s-deploy up` to finish")
        return Exit.INTERRUPTED
    checks = answers("after_ready", operation, views, args, screen)
    if args.json:
        screen.json({"left": list(left), **status_json(views), **checks_json(checks)})
    else:
        screen.show(*([f"finished: {', '.join(view.name for view in views)}"] if views else []), *left)
    return say_checks(checks, screen)


def _interrupted(interrupted: KeyboardInterrupt, request: UpRequest, screen: Screen) -> int:
    if request.undo_on_interrupt:
        screen.say("interrupted: everything that was started has been stopped")
    elif isinstance(interrupted, Undone):
        screen.say(
            f"interrupted: no rank of {', '.join(interrupted.gangs)} was started, and nothing of it is left running"
        )
        if interrupted.goes_on:
            screen.say("  the other gangs continue on their own: l40s-deploy status")
        screen.say("  start it: repeat the same `up`")
    else:
        screen.say("detached: everything that was started continues on its own")
        screen.say("  check: l40s-deploy status; attach again: repeat `up`; stop: `down` and the gang's name")
    return Exit.INTERRUPTED


def _without_words(outcome: UpResult, left_out: Sequence[str]) -> str:
    stand_ins = ", ".join(name for view in outcome.views for name in view.stand_ins)
    if stand_ins:
        return f"serves without {', '.join(left_out)}; in its place: {stand_ins}"
    return f"serves on fewer nodes, without {', '.join(left_out)}: `status` says degraded until all serve again"


def _show(outcome: UpResult, screen: Screen, checks: Mapping[str, Any], request: UpRequest) -> None:
    if screen.as_json:
        screen.json(
            {
                "plan_id": outcome.plan.plan_id,
                "seconds": round(outcome.seconds, 3),
                "already_ready": sorted(outcome.ready_before),
                "changed": list(outcome.changed),
                "findings": plan_json(outcome.plan)["findings"],
                **status_json(outcome.views),
                **checks,
            }
        )
        return
    for view in outcome.views:
        screen.show(*gang_block(view))
        if view.name in outcome.ready_before:
            screen.show(f"{view.name} is already ready with this plan; nothing changed")
            if request.before_go:
                screen.show(f"  nor was anything tested: that is done before a start (`l40s-deploy down {view.name}`)")
        elif view.canary_text is not None:
            done = "changed to this plan" if view.name in outcome.changed else "ready"
            screen.show(f"{done} in {outcome.seconds:.1f} s; canary: {view.canary_text.strip()[:100]!r}")
    if request.plan.without:
        screen.say(_without_words(outcome, request.plan.without))
