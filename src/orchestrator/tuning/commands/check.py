"""`l40s-deploy stack check`: whether the kernels that a plan needs compute rightly on the nodes' GPUs; with --arch,
which GPUs a stack's libraries hold code for."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from orchestrator.cli.options import add_layout, add_timeout, add_usual_of_gangs, open_inventory
from orchestrator.cli.progress import words_in_place
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import counting
from orchestrator.cli.typed import command_line
from orchestrator.gang.steps.operation import connected
from orchestrator.model.deadlines import KERNELS_S
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import Exit, InputError
from orchestrator.tuning.gpu_code import Holds, arch_of
from orchestrator.tuning.kernels import KernelResult, KernelVerdict, dtype_words, gravest_of, shape_words
from orchestrator.tuning.steps import kernels
from orchestrator.tuning.steps.gpu_code import LibraryCode, check_code, code_json

LINE_EVERY_S = 5.0
"""How often progress is printed if lines can't be updated in place."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this word."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy stack check --model DeepSeek-V3-0324-Block64x64",
        "l40s-deploy stack check --model DeepSeek-R1-Channel-INT8 --stack sglang-0.4.4-l40s --json",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --check-kernels     # before every rank starts",
        "l40s-deploy stack check --arch sm_89 --stack sglang-0.5.23 --from gpu.bundle     # no node, no GPU",
    )
    parser.add_argument("--model", metavar="NAME", help="a profile's name or .yml file")
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: as `plan` chooses)")
    parser.add_argument(
        "--arch",
        metavar="sm_NN",
        help="instead: which libraries of --stack's lock hold code for this architecture, an older one, or PTX",
    )
    parser.add_argument(
        "--from",
        dest="place",
        type=Path,
        metavar="PLACE",
        help="with --arch, where the packages are: a folder of wheels, an environment, or a bundle of `stack build`",
    )
    add_layout(parser)
    add_timeout(parser, "give up if the kernels of a gang take longer than this", KERNELS_S)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """7 where a kernel is wrong or fails, 4 where a node dropped out, 3 where one was not run; with --arch 3 where a
    library is unknown or has nothing for it."""
    if args.arch is not None:
        return _code(args, screen)
    if args.model is None or args.place is not None:
        what = "--model is missing" if args.model is None else "--from goes with --arch"
        fix = "name the model with --model; or, to read packages, use --arch with --stack and --from"
        raise InputError(what, where="command line", fix=fix)
    plan = PlanRequest(model=args.model, stack=args.stack, **args.layout, gangs=tuple(args.gang))
    with connected(open_inventory(args, screen)) as operation, counting(screen, "kernels") as at:
        checked = kernels.run_now(operation, plan, at, command=command_line(), timeout_s=args.timeout)
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


def _code(args: argparse.Namespace, screen: Screen) -> int:
    try:
        arch = arch_of(args.arch)
    except ValueError as error:
        raise InputError(str(error), where="--arch", fix="--arch sm_89") from None
    if args.stack is None or args.place is None or args.model is not None or args.gang:
        fix = "name the stack with --stack and the place of its packages with --from, and leave out --model and gangs"
        raise InputError(
            "--arch wants --stack and --from, and neither --model nor a gang", where="command line", fix=fix
        )
    with words_in_place(screen, f"reading the packages of {args.stack}", every_s=LINE_EVERY_S) as update:
        found = check_code(
            args.stack, args.place, arch, lambda package, place, of: update(f"{place} of {of}: {package}")
        )
    if screen.as_json:
        screen.json(code_json(args.stack, arch, found))
    else:
        for line in code_lines(found, arch):
            screen.show(line)
    worst = {library.holds for library in found}
    return Exit.FINDINGS if worst & {Holds.UNKNOWN, Holds.NONE} else Exit.DONE


_WORDS = {
    Holds.NONE: "nothing that runs",
    Holds.PARTLY: "some kernels only",
    Holds.PTX: "only what is compiled at the first use",
    Holds.OLDER: "code of an older GPU of the family",
    Holds.OWN: "its own code",
}


def code_lines(found: Sequence[LibraryCode], arch: int) -> Iterator[str]:
    """A line for each library with GPU code or that is unknown, the gravest first; the others are counted."""
    for library in found:
        name = f"{library.package} {library.version}{f' {library.library}' if library.library else ''}"
        if library.holds is Holds.UNKNOWN:
            yield f"{name}: unknown: {library.why}"
        elif library.holds is not Holds.NO_CODE:
            share = "" if library.running is None else f" in {library.running} of {library.fat_binaries} fat binaries"
            yield f"{name}: {_WORDS[library.holds]} for sm_{arch}{share} ({', '.join(library.code)})"
    plain = sum(library.holds is Holds.NO_CODE for library in found)
    yield f"{plain} {'library' if plain == 1 else 'libraries'} without GPU code"


def _worst_words(results: Collection[KernelResult]) -> list[str]:
    """The largest error and the slowest time, of those that have one."""
    errors = [checked.error for checked in results if checked.error is not None]
    times = [checked.us for checked in results if checked.us is not None]
    return [f"error {error:.4f}" for error in sorted(errors)[-1:]] + [f"{us:.0f} us" for us in sorted(times)[-1:]]


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
        words += _worst_words(ones.values())
        style = {"right": "", "not-run": "bold yellow"}.get(verdict, "bold red")
        say(printable(", ".join(words) + (f": {reason}" if reason else "")), style=style)
    for node, failure in gang.lost.items():
        say(printable(f"  {node}: {failure.where}: {failure.what}"), style="bold red")
