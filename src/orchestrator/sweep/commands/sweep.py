"""`l40s-deploy sweep`: which plan is the best for a load on these machines, measured one after the other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_accept, add_duration, add_timeout, add_usual, count, layout
from orchestrator.cli.screen import Screen
from orchestrator.cli.tables import cell, plain_table
from orchestrator.cli.transfers import counting, duration
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands.cluster import open_cluster
from orchestrator.gang.commands.outcome import RisingProgress, add_dry_run
from orchestrator.model.chosen import the_one_gang
from orchestrator.model.measured import CandidateResult, CandidateState, SweepRecord, best
from orchestrator.model.profile import Load
from orchestrator.model.words import counted
from orchestrator.protocol.errors import Exit
from orchestrator.sweep.candidates import VARIED, Variation, variation_of
from orchestrator.sweep.document import sweep_json
from orchestrator.sweep.network import faster

if TYPE_CHECKING:
    from orchestrator.sweep.steps.plans import PlannedSweep, SweepOptions

LOADS = (1, 4, 32, 128)
EPILOG = """
exit status: 0 something is measured, 2 something serves and --replace was not given, 5 nothing could be \
measured; an error's own

Interrupted or killed, the same command goes on; --budget 0s ends it and returns to what served before.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy sweep --model DeepSeek-V3-0324-Block64x64 --dry-run     # the candidates, and the time they take",
        "l40s-deploy sweep --model DeepSeek-V3-0324-Block64x64 --budget 6h --replace --html sweep.html",
        "l40s-deploy sweep --model DeepSeek-V3-0324-Block64x64 --layout tp32 --vary draft=off,mtp --vary kv=auto,fp8",
        "l40s-deploy sweep --model DeepSeek-V3-0324-Block64x64 --model DeepSeek-V3-0324 --load 32 --keep best",
    )
    parser.epilog = f"{parser.epilog}\n{EPILOG}"
    parser.add_argument("gang", nargs="*", default=[], metavar="GANG", help="which gang, where there are several")
    _add_candidates(parser)
    _add_load(parser)
    add_duration(parser, "--budget", "leave out the least promising candidates that would take longer than this")
    _add_course(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with curves")
    add_timeout(parser, "give up a candidate if its start, or a run of its benchmark, takes longer than this")
    add_accept(parser)
    add_dry_run(parser, "only show the candidates and the time they will take")


def _add_course(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep",
        choices=("before", "best"),
        default="before",
        help="what serves at the end: what served before, or the candidate that is the fastest over all loads",
    )
    parser.add_argument("--replace", action="store_true", help="stop what serves; it serves again at the end")
    parser.add_argument(
        "--nccl",
        action=argparse.BooleanOptionalAction,
        help="first compare NCCL's algorithms, protocols, channels and P2P by `nettest`, without loading (default:"
        " once, before the first candidate)",
    )
    parser.add_argument("--again", action="store_true", help="measure once more what earlier calls have measured")


def _add_candidates(parser: argparse.ArgumentParser) -> None:
    """What is measured, one after the other."""
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME",
        help="a profile's name or .yml file; again: another checkpoint of the same model beside it",
    )
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: as `plan` chooses)")
    parser.add_argument(
        "--layout",
        type=layout,
        action="append",
        default=[],
        metavar="NAME|DEGREES",
        help="only this layout, as for `plan` (repeatable; default: those that fit)",
    )
    parser.add_argument(
        "--vary",
        type=_variation,
        action="append",
        default=[],
        metavar="NAME=A,B",
        help=f"each value of a setting, with each of the others (repeatable): {', '.join(VARIED)}",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    usual = Load()
    parser.add_argument(
        "--load",
        type=_counts,
        default=LOADS,
        metavar="N,N,...",
        help=f"requests at once, a measurement each ({','.join(map(str, LOADS))})",
    )
    parser.add_argument(
        "--input", type=count, default=usual.input, metavar="N", help=f"tokens of each prompt ({usual.input})"
    )
    parser.add_argument(
        "--output", type=count, default=usual.output, metavar="N", help=f"tokens of each answer ({usual.output})"
    )
    parser.add_argument("--dataset", metavar="FILE", help="prompts in ShareGPT's format (default: our own text)")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(sorted(map(count, text.split(",")))))


def _variation(text: str) -> Variation:
    try:
        return variation_of(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 where something is measured, 5 where nothing could be; an error's own."""
    from orchestrator.bench.steps.bench_report import refuse_unwritable
    from orchestrator.sweep.steps import plans, sweep

    if args.html:
        refuse_unwritable(args.html)
    options = _options(args)
    inventory = open_cluster(args, screen)
    gang = the_one_gang(inventory, args.gang, command="sweep")
    begun = plans.planned(inventory, gang, options)
    _say_candidates(begun, screen, tests=len(sweep.untried(begun.record, options)))
    if args.dry_run:
        return _shown(begun.record, args, screen)
    shown = sweep.SweepScreen(
        say=screen.say,
        ended=partial(_ended, screen),
        counting=partial(counting, screen),
        rising=lambda: RisingProgress(screen),
    )
    try:
        record = sweep.sweep(inventory, gang, begun, options, shown)
    except KeyboardInterrupt:
        screen.say("interrupted: what was measured is kept, and the candidate that runs was left as it is")
        screen.say("  fix: run the same command to go on, or with --budget 0s to return to what served before")
        return Exit.INTERRUPTED
    _shown(record, args, screen)
    states = {result.state for result in record.results}
    in_vain = CandidateState.MEASURED not in states and states != {CandidateState.LEFT}
    return Exit.GANG_FAILED if in_vain else Exit.DONE


def _options(args: argparse.Namespace) -> SweepOptions:
    from orchestrator.bench.steps.bench import read_dataset
    from orchestrator.sweep.steps.plans import SweepOptions

    dataset = read_dataset(Path(args.dataset).expanduser(), max(args.load)) if args.dataset else None
    return SweepOptions(
        models=tuple(dict.fromkeys(args.model)),
        stack=args.stack,
        layouts=tuple(args.layout),
        vary=tuple(args.vary),
        requests=tuple(args.load),
        input=args.input,
        output=args.output,
        dataset=dataset,
        budget_s=args.budget,
        keep_best=args.keep == "best",
        replaces=args.replace,
        again=args.again,
        network=args.nccl,
        accept=tuple(args.accept),
        timeout_s=args.timeout,
        command=command_line(),
    )


def _say_candidates(begun: PlannedSweep, screen: Screen, *, tests: int) -> None:
    """What will be measured, in its order, and how long that takes. tests: of the network, before it"""
    waiting = [result for result in begun.record.results if result.waits]
    for result in waiting:
        screen.say(f"{result.candidate.id}: about {duration(begun.seconds[result.candidate.id])}")
    total = sum(begun.seconds[result.candidate.id] for result in waiting)
    screen.say(f"{counted(len(waiting), 'candidate')} to measure, about {duration(total)} in all")
    if tests:
        screen.say(f"before them NCCL's settings, {counted(tests, 'network test')} (--no-nccl leaves them out)")


def _ended(screen: Screen, result: CandidateResult) -> None:
    words = ", ".join(f"{point.tok_s:.1f} tok/s at {point.requests}" for point in result.points)
    screen.say(f"{result.candidate.id}: {result.state.value}: {result.cause or words}")


def _shown(record: SweepRecord, args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.sweep.steps.page import write_sweep_page

    if args.html:
        write_sweep_page(record, args.html)
        screen.say(f"page written: {args.html}")
    if args.json:
        screen.json(sweep_json(record))
    else:
        _show_table(record, screen)
    return Exit.DONE


def _start_words(result: CandidateResult) -> tuple[str, str, str, str]:
    """Name, state, KV tokens and seconds of the start, where they are known."""
    tokens = "" if result.kv_tokens is None else f"{result.kv_tokens:,}"
    start = "" if result.start_s is None else f"{result.start_s:.0f} s"
    return result.candidate.id, result.state.value, tokens, start


def _cause_lines(results: Sequence[CandidateResult]) -> list[str]:
    return [f"{result.candidate.id}: {result.state.value}: {result.cause}" for result in results if result.cause]


def _show_table(record: SweepRecord, screen: Screen) -> None:
    loads, asked = record.load.requests, record.load
    screen.show(f"{record.model} by {record.stack} on {record.gang}; {asked.input} tokens in, {asked.output} out")
    if any(result.stand_in for result in record.results):
        screen.show("  the lab's stand-in answered, without a model: these figures say nothing about a GPU")
    table = plain_table("candidate", "state", "KV tokens", "start", *(f"tok/s at {load}" for load in loads))
    for result in record.results:
        figures = (_figure(record, result, load) for load in loads)
        table.add_row(*map(cell, (*_start_words(result), *figures)))
    screen.show(table, *_cause_lines(record.results))
    if any(result.points for result in record.results):
        screen.show("*: the fastest at that load; ±: half the interval that its runs leave for the mean")
    if record.trials:
        _show_network(record, screen)
    if record.kept:
        screen.show(f"kept: {record.kept}")


def _show_network(record: SweepRecord, screen: Screen) -> None:
    sizes = list(dict.fromkeys(size for trial in record.trials for size in trial.reduces_us))
    table = plain_table("NCCL", *(f"{int(size):,} bytes, us" for size in sizes), "")
    for trial in record.trials:
        figures = (f"{trial.reduces_us[size]:.1f}" if size in trial.reduces_us else "" for size in sizes)
        table.add_row(*map(cell, (trial.name, *figures, trial.cause)))
    screen.show(table)
    env = {trial.name: trial.env for trial in record.trials}
    for size, name in faster(record.trials).items():
        words = ", ".join(f"{variable}: {value}" for variable, value in env[name].items())
        screen.show(f"{int(size):,} bytes: {name} is faster; with l40s_env {{{words}}} the next start has it")


def _figure(record: SweepRecord, result: CandidateResult, load: int) -> str:
    point = result.point(load)
    if point is None:
        return ""
    mark = "*" if best(record.results, load) is result else ""
    return f"{mark}{point.tok_s:.1f} ± {100 * point.noise:.0f} %"
