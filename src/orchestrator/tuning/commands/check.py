"""`l40s-deploy stack check`: whether the kernels that a plan needs compute rightly on the nodes' GPUs."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_layout, add_timeout, add_usual_of_gangs, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import counting
from orchestrator.cli.typed import command_line
from orchestrator.model.deadlines import KERNELS_S
from orchestrator.model.errors import Exit
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.tuning.kernels import KernelResult, KernelVerdict, dtype_words, gravest_of, shape_words
from orchestrator.tuning.steps import kernels


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this word."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy stack check --model DeepSeek-V3-0324-Block64x64",
        "l40s-deploy stack check --model DeepSeek-R1-Channel-INT8 --stack sglang-0.4.4-l40s --json",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --check-kernels     # before every rank starts",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a profile's name or .yml file")
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: as `plan` chooses)")
    add_layout(parser)
    add_timeout(parser, "give up if the kernels of a gang take longer than this", KERNELS_S)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """7 where a kernel is wrong or fails, 4 where a node dropped out, 3 where one was not run."""
    inventory = open_inventory(args, screen)
    plan = PlanRequest(model=args.model, stack=args.stack, **args.layout, gangs=tuple(args.gang))
    with counting(screen, "kernels") as at:
        checked = kernels.run_now(inventory, plan, at, command=command_line(), timeout_s=args.timeout)
    if screen.as_json:
        screen.json(kernels.check_json(checked))
    else:
        for gang in checked:
            _show(gang, screen)
    verdict = gravest_of(gang.verdict for gang in checked)
    if verdict in (KernelVerdict.WRONG, KernelVerdict.FAILS):
        return Exit.DIFFERS
    if any(gang.lost for gang in checked):
        return Exit.UNREACHABLE
    return Exit.DONE if verdict is KernelVerdict.RIGHT else Exit.FINDINGS


def _show(gang: kernels.CheckedGang, screen: Screen) -> None:
    """A line a kernel and verdict: its largest error, its slowest time, and on which nodes where they differ."""
    say = screen.out.print
    where = "one GPU of each node" if gang.real else "no GPU: Triton's interpreter, which times nothing"
    say(printable(f"{gang.gang}: {gang.stack} on {', '.join(gang.nodes)} ({where})"))
    rows: dict[tuple[int, str, str], dict[str, KernelResult]] = {}
    for node, results in gang.nodes.items():
        for result in results:
            rows.setdefault((result.case.id, result.verdict.value, result.reason), {})[node] = result
    for (_, verdict, reason), ones in sorted(rows.items()):
        case = next(iter(ones.values())).case
        words = [f"  {case.name} ({shape_words(case)}, {dtype_words(case)}): {verdict}"]
        if len(ones) < len(gang.nodes):
            words[0] += f" on {', '.join(ones)}"
        errors = [checked.error for checked in ones.values() if checked.error is not None]
        times = [checked.us for checked in ones.values() if checked.us is not None]
        words += [f"error {error:.4f}" for error in sorted(errors)[-1:]] + [f"{us:.0f} us" for us in sorted(times)[-1:]]
        style = {"right": "", "not-run": "bold yellow"}.get(verdict, "bold red")
        say(printable(", ".join(words) + (f": {reason}" if reason else "")), style=style)
    for node, failure in gang.lost.items():
        say(printable(f"  {node}: {failure.where}: {failure.what}"), style="bold red")
