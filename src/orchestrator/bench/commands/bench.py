"""`l40s-deploy bench`: runs the engine's own benchmark, records it, and compares it with expected figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_usual, open_cluster, seconds
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.benchmark import FIGURES, Load
from orchestrator.model.errors import Exit, InputError

if TYPE_CHECKING:
    from orchestrator.bench.steps.bench import BenchedGang
    from orchestrator.bench.verdict import JudgedFigure

TIMEOUT_S = 1800.0
_LOAD = (
    ("concurrency", "concurrent requests, at most"),
    ("input", "tokens of each prompt"),
    ("output", "tokens of each answer"),
    ("prompts", "requests in all"),
    ("rate", "requests sent a second"),
)
_LISTED = 20
SWEEP = (1, 4, 32, 128)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy bench",
        "l40s-deploy bench --gate --concurrency 32 --prompts 64",
        "l40s-deploy bench --sweep 1,4,32,128 --input 200 --output 512",
        "l40s-deploy bench --sweep 1,4,32,128 --html bench.html",
        "l40s-deploy bench list",
        "l40s-deploy bench --markdown 20260714-101500-gang0 20260714-113000-gang0",
        "l40s-deploy bench --compare 20260714-101500-gang0 20260714-113000-gang0",
    )
    parser.add_argument(
        "gang",
        nargs="*",
        default=[],
        metavar="GANG",
        help="which gang, where there are several; list: the recorded runs",
    )
    for name, what in _LOAD:
        default = getattr(Load(), name)
        parser.add_argument(f"--{name}", type=_count, default=default, metavar="N", help=f"{what} ({default})")
    parser.add_argument(
        "--dataset", metavar="FILE", help="prompts in ShareGPT's format, sent to the leader (default: our own text)"
    )
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT_S, metavar="TIME", help="time limit of a run (30m)")
    parser.add_argument(
        "--gate",
        action="store_true",
        help="exit 7 if it is slow, 2 if there is nothing to compare with or the runs differ too much",
    )
    parser.add_argument(
        "--sweep",
        type=_counts,
        nargs="?",
        const=SWEEP,
        metavar="N,N,...",
        help="one run for each number of requests, all sent at once: throughput against latency, and the articles' "
        f"decode table ({','.join(map(str, SWEEP))})",
    )
    parser.add_argument(
        "--markdown", nargs="+", metavar="RUN", help="show recorded runs as a table; contacts no engine"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write a page with curves beside the profile's speeds; with --markdown or list: of those runs",
    )
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two recorded runs side by side; asks no engine")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when measured, 7 with --gate when the verdict is BENCH-SLOW, 2 with --gate when nothing could be judged or
    decided."""
    from orchestrator.bench import store
    from orchestrator.bench.steps import bench
    from orchestrator.bench.steps import page as bench_page
    from orchestrator.cli.transfers import counting

    if args.html:
        bench_page.refuse_unwritable(args.html)
    if args.markdown and args.json:
        raise InputError(
            "--markdown and --json are two forms of the same runs",
            where="bench",
            fix="leave one of them out: `bench list --json` has every recorded run",
        )
    if args.gang == ["list"]:
        _page(records := store.all_benches(), args, screen)
        return _list(records, args, screen)
    if args.markdown:
        _page(chosen := tuple(map(store.read_bench, args.markdown)), args, screen)
        screen.out.print(bench.markdown(chosen), markup=False, soft_wrap=True, highlight=False)
        return Exit.DONE
    if args.compare:
        return _compare(*bench.compared(args.compare), args, screen)
    load = Load(**{name: getattr(args, name) for name, _ in _LOAD})
    most = max(args.sweep) if args.sweep else load.prompts
    dataset = bench.read_dataset(Path(args.dataset).expanduser(), most) if args.dataset else None
    inventory = open_cluster(args, screen)
    order = bench.BenchOptions(gangs=tuple(args.gang), load=load, timeout_s=args.timeout, dataset=dataset)
    with counting(screen, "requests answered") as at:
        if args.sweep:
            return _sweep(bench.sweep_now(inventory, order, args.sweep, at), args, screen)
        done = bench.run_now(inventory, order, at)
    _page([done.record], args, screen)
    if args.json:
        screen.json(bench.bench_json(done))
    else:
        _print(done, load, screen)
    return _code(done.verdict.value, gate=args.gate)


def _sweep(done: Sequence[BenchedGang], args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.bench.steps.bench import markdown, sweep_json

    _page([one.record for one in done], args, screen)
    if args.json:
        screen.json(sweep_json(done))
    else:
        screen.out.print(markdown([one.record for one in done]), markup=False, soft_wrap=True, highlight=False)
        for one in done:
            screen.out.print(printable(f"{one.record['load']['concurrency']} at once:"))
            _print_verdict(one, screen)
    return max(_code(one.verdict.value, gate=args.gate) for one in done)


def _page(records: Sequence[Mapping[str, Any]], args: argparse.Namespace, screen: Screen) -> None:
    """The page that --html asks for."""
    from orchestrator.bench.steps.page import write_page

    if args.html:
        write_page(records, args.html)
        screen.say(f"page written: {args.html}")


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _code(verdict: str, *, gate: bool) -> int:
    if not gate:
        return Exit.DONE
    unsaid = dict.fromkeys(("not judged", "not decidable"), Exit.INPUT)
    return {"BENCH-SLOW": Exit.DIFFERS, **unsaid}.get(verdict, Exit.DONE)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number from 1 to 1000000")
    return int(text)


def _print(done: BenchedGang, load: Load, screen: Screen) -> None:
    say, record = screen.out.print, done.record
    say(printable(f"{record['gang']}: {record['model']} by {record['stack']} at {record['layout']}, {record['gpu']}"))
    say(printable(f"  {load}; prompts: {record['dataset']}"))
    if record["stand_in"]:
        say("  the lab's stand-in answered, without a model: these figures say nothing about a GPU")
    if not done.judged:
        _figures(record["serving"], screen)
    if log := record.get("decode_log"):
        say(
            f"  the leader's log: {log['tok_s']:.2f} tok/s with {log['tokens']} tokens held; mean {log['mean']:.2f},"
            f" {log['least']:.2f} to {log['most']:.2f} in {log['lines']} lines"
        )
    _print_verdict(done, screen)


def _print_verdict(done: BenchedGang, screen: Screen) -> None:
    """What a run is worth: its figures beside those it was held against, the verdict, why, and where the record is."""
    say = screen.out.print
    if done.judged:
        _table(done.judged, ("measured", "expected"), screen)
        say(printable(f"  held against {done.against}"))
    why = "other prompts" if done.judged else "the profile expects nothing for this case; the next run is compared"
    words = {
        "not judged": f"recorded, not judged: {why}",
        "not decidable": f"not decidable: {len(done.record['runs'])} runs differ too much; raise --prompts",
    }
    say(printable(f"  verdict: {words.get(done.verdict.value, done.verdict.value)}"))
    for cause in done.causes:
        say(printable(f"  likely: {cause}"))
    if done.verdict.value == "BENCH-SLOW":
        say("  fix: l40s-deploy doctor; l40s-deploy tuning status; l40s-deploy status")
    say(printable(f"  recorded as {done.record['id']} in {done.file}"))


def _figures(serving: dict[str, float], screen: Screen) -> None:
    for figure in FIGURES:
        if figure.name in serving:
            screen.out.print(printable(f"  {figure.title:<24} {serving[figure.name]:>12.2f} {figure.unit}"))


def _table(judged: Sequence[JudgedFigure], titles: tuple[str, str], screen: Screen) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("  figure")
    for title in (*titles, "unit", "speed"):
        table.add_column(title, justify="left" if title == "unit" else "right")
    table.add_column("")
    colours = {"BENCH-SLOW": "bold red", "note": "yellow", "not decidable": "yellow"}
    for one in judged:
        verdict = one.verdict.value
        cells = (f"  {one.figure.title}", f"{one.found:.2f}", f"{one.expected:.2f}", one.figure.unit)
        words = Text("" if verdict == "as expected" else verdict, colours.get(verdict, ""))
        noise = f" ± {100 * one.noise:.0f}" if one.noise else ""
        table.add_row(*map(Text, cells), Text(f"{100 * one.speed:.0f}{noise} %"), words)
    screen.out.print(table)


def _list(records: Sequence[dict[str, Any]], args: argparse.Namespace, screen: Screen) -> int:
    from rich.table import Table
    from rich.text import Text

    if args.json:
        left_out = ("raw", "packages", "format")
        screen.json({"runs": [{key: value for key, value in one.items() if key not in left_out} for one in records]})
        return Exit.DONE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "measured", "model", "stack", "layout", "at once", "tok/s out", "verdict"):
        table.add_column(title)
    for one in records[-_LISTED:]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["at"]))
        speed = f"{one['serving'].get('output_tok_s', 0.0):.2f}"
        cells = (one["id"], when, one["model"], one["stack"], one["layout"], one["load"].get("concurrency"), speed)
        table.add_row(*(Text(printable(str(cell))) for cell in (*cells, one.get("verdict", ""))))
    screen.out.print(table if table.rows else "no benchmark is recorded; run l40s-deploy bench")
    if len(records) > _LISTED:
        screen.say(f"the newest {_LISTED} of {len(records)}; all of them with --json")
    return Exit.DONE


def _compare(
    first: dict[str, Any],
    second: dict[str, Any],
    judged: Sequence[JudgedFigure],
    args: argparse.Namespace,
    screen: Screen,
) -> int:
    from orchestrator.bench.steps.bench import differences, figures_json

    others = differences(first, second)
    if args.json:
        screen.json({"a": first["id"], "b": second["id"], "differ": others, "figures": figures_json(judged)})
        return Exit.DONE
    for name in others:
        screen.out.print(printable(f"{name}: {first.get(name)} and {second.get(name)}"))
    _table(judged, ("B", "A"), screen)
    return Exit.DONE
