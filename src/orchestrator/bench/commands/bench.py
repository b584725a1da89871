"""`l40s-deploy bench`: runs the engine's own benchmark, records it, and compares it with expected figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_usual, seconds
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.tables import cell, plain_table
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.model.profile import FIGURES, Load
from orchestrator.protocol.errors import Exit, InputError

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
LOADS = (1, 4, 32, 128)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy bench",
        "l40s-deploy bench --gate --concurrency 32 --prompts 64",
        "l40s-deploy bench --load 1,4,32,128 --input 200 --output 512",
        "l40s-deploy bench --load 1,4,32,128 --html bench.html",
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
    _add_load(parser)
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT_S, metavar="TIME", help="time limit of a run (30m)")
    parser.add_argument(
        "--gate",
        action="store_true",
        help="exit 7 if it is slow, 2 if there is nothing to compare with or the runs differ too much",
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


def _add_load(parser: argparse.ArgumentParser) -> None:
    for name, what in _LOAD:
        default = getattr(Load(), name)
        parser.add_argument(f"--{name}", type=_count, default=default, metavar="N", help=f"{what} ({default})")
    parser.add_argument(
        "--dataset", metavar="FILE", help="prompts in ShareGPT's format, sent to the leader (default: our own text)"
    )
    parser.add_argument(
        "--load",
        type=_counts,
        nargs="?",
        const=LOADS,
        metavar="N,N,...",
        help="one run for each number of requests, all sent at once: throughput against latency, and the articles' "
        f"decode table ({','.join(map(str, LOADS))})",
    )
    parser.add_argument("--sweep", type=_counts, nargs="?", const=LOADS, dest="old_load", help=argparse.SUPPRESS)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number from 1 to 1000000")
    return int(text)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when measured, 7 with --gate when the verdict is BENCH-SLOW, 2 with --gate when nothing could be judged or
    decided."""
    from orchestrator.bench import store
    from orchestrator.bench.steps import bench_report

    if args.old_load:
        screen.say("--sweep is called --load now, and goes with the next release: `sweep` compares plans")
        args.load = args.load or args.old_load
    if args.html:
        bench_report.refuse_unwritable(args.html)
    if args.markdown and args.json:
        raise InputError(
            "--markdown and --json are two forms of the same runs",
            where="bench",
            fix="leave one of them out: `bench list --json` has every recorded run",
        )
    if args.gang == ["list"]:
        _page(records := store.all_benches(), args, screen)
        return _list(records, screen)
    if args.markdown:
        _page(chosen := tuple(map(store.read_bench, args.markdown)), args, screen)
        _markdown(chosen, screen)
        return Exit.DONE
    if args.compare:
        first, second = map(store.read_bench, args.compare)
        return _compare(first, second, screen)
    return _measure(args, screen)


def _measure(args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.bench.steps import bench, bench_report
    from orchestrator.cli.transfers import counting

    load = Load(**{name: getattr(args, name) for name, _ in _LOAD})
    most = max(args.load) if args.load else load.prompts
    dataset = bench.read_dataset(Path(args.dataset).expanduser(), most) if args.dataset else None
    order = bench.BenchOptions(gangs=tuple(args.gang), load=load, timeout_s=args.timeout, dataset=dataset)
    with connected_cluster(args, screen) as operation, counting(screen, "requests answered") as at:
        if args.load:
            benched = bench.at_loads(operation, order, args.load, at)
        else:
            benched = (bench.run_now(operation, order, at),)
    measured = tuple(gang.record for gang in benched)
    _page(measured, args, screen)
    if args.json:
        screen.json(bench_report.loads_json(benched) if args.load else bench_report.bench_json(benched[0]))
    elif args.load:
        _markdown(measured, screen)
        for gang in benched:
            screen.out.print(printable(f"{gang.record['load']['concurrency']} at once:"))
            _print_verdict(gang, screen)
    else:
        _print(benched[0], load, screen)
    codes = {"BENCH-SLOW": Exit.DIFFERS, "not judged": Exit.INPUT, "not decidable": Exit.INPUT}
    return max(codes.get(gang.verdict.value, Exit.DONE) for gang in benched) if args.gate else Exit.DONE


def _page(records: Sequence[Mapping[str, Any]], args: argparse.Namespace, screen: Screen) -> None:
    """The page that --html asks for."""
    from orchestrator.bench.steps.bench_report import write_page

    if args.html:
        write_page(records, args.html)
        screen.say(f"page written: {args.html}")


def _markdown(records: Sequence[Mapping[str, Any]], screen: Screen) -> None:
    from orchestrator.bench.steps.bench_report import markdown

    screen.out.print(markdown(records), markup=False, soft_wrap=True, highlight=False)


def _print(done: BenchedGang, load: Load, screen: Screen) -> None:
    say, record = screen.out.print, done.record
    say(printable(f"{record['gang']}: {record['model']} by {record['stack']} at {record['layout']}, {record['gpu']}"))
    say(printable(f"  {load}; prompts: {record['dataset']}"))
    if record["stand_in"]:
        say("  the lab's stand-in answered, without a model: these figures say nothing about a GPU")
    serving = {} if done.judged else record["serving"]
    for figure in FIGURES:
        if figure.name in serving:
            say(printable(f"  {figure.title:<24} {serving[figure.name]:>12.2f} {figure.unit}"))
    if log := record.get("decode_log"):
        say(
            f"  the leader's log: {log['tok_s']:.2f} tok/s with {log['tokens']} tokens held; mean {log['mean']:.2f},"
            f" {log['least']:.2f} to {log['most']:.2f} in {log['lines']} lines"
        )
    _print_verdict(done, screen)


def _print_verdict(done: BenchedGang, screen: Screen) -> None:
    """What a run is worth: its figures beside those it was held against, the verdict, why, and where the record is."""
    say, record = screen.out.print, done.record
    if done.judged:
        _table(done.judged, ("measured", "expected"), screen)
        say(printable(f"  held against {record['against']}"))
    why = "other prompts" if done.judged else "the profile expects nothing for this case; the next run is compared"
    words = {
        "not judged": f"recorded, not judged: {why}",
        "not decidable": f"not decidable: {len(record['runs'])} runs differ too much; raise --prompts",
    }
    say(printable(f"  verdict: {words.get(done.verdict.value, done.verdict.value)}"))
    for cause in record["causes"]:
        say(printable(f"  likely: {cause}"))
    if (free := record.get("least_free_bytes")) is not None:
        say(f"  least free GPU memory: {free / (1 << 30):.1f} GiB; the next `plan` goes by it")
    if done.verdict.value == "BENCH-SLOW":
        say("  fix: `l40s-deploy doctor`, `l40s-deploy status`; `tuning status --model` shows what is not tuned")
    say(printable(f"  recorded as {record['id']} in {done.file}"))


def _table(judged: Sequence[JudgedFigure], titles: tuple[str, str], screen: Screen) -> None:
    table = plain_table("  figure", *titles, "unit", "speed", "", left=("unit",))
    colours = {"BENCH-SLOW": "bold red", "note": "yellow", "not decidable": "yellow"}
    for figure in judged:
        verdict = figure.verdict.value
        noise = f" ± {100 * figure.noise:.0f}" if figure.noise else ""
        figures = (f"  {figure.figure.title}", f"{figure.found:.2f}", f"{figure.expected:.2f}", figure.figure.unit)
        words = cell("" if verdict == "as expected" else verdict, colours.get(verdict, ""))
        table.add_row(*map(cell, figures), cell(f"{100 * figure.speed:.0f}{noise} %"), words)
    screen.out.print(table)


def _list(records: Sequence[dict[str, Any]], screen: Screen) -> int:
    if screen.as_json:
        left_out = ("raw", "packages", "format")
        screen.json(
            {"runs": [{key: value for key, value in record.items() if key not in left_out} for record in records]}
        )
        return Exit.DONE
    titles = ("run", "measured", "model", "stack", "layout", "at once", "tok/s out", "verdict")
    table = plain_table(*titles, left=titles)
    for record in records[-_LISTED:]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["at"]))
        speed = f"{record['serving'].get('output_tok_s', 0.0):.2f}"
        texts = (
            record["id"],
            when,
            record["model"],
            record["stack"],
            record["layout"],
            record["load"].get("concurrency"),
            speed,
        )
        table.add_row(*map(cell, (*texts, record.get("verdict", ""))))
    screen.out.print(table if table.rows else "no benchmark is recorded; run l40s-deploy bench")
    if len(records) > _LISTED:
        screen.say(f"the newest {_LISTED} of {len(records)}; all of them with --json")
    return Exit.DONE


def _compare(first: Mapping[str, Any], second: Mapping[str, Any], screen: Screen) -> int:
    """The second record beside the first, and what they do not share: their figures are not those of one case then."""
    from orchestrator.bench.steps.bench_report import figures_json
    from orchestrator.bench.verdict import judge

    judged = judge(second["serving"], first["serving"], second.get("runs", ()))
    keys = ("gang", "plan_id", "model", "stack", "packages", "layout", "gpu", "load", "dataset", "stand_in")
    differ = [key for key in keys if first.get(key) != second.get(key)]
    if screen.as_json:
        screen.json({"a": first["id"], "b": second["id"], "differ": differ, "figures": figures_json(judged)})
        return Exit.DONE
    for name in differ:
        screen.out.print(printable(f"{name}: {first.get(name)} and {second.get(name)}"))
    _table(judged, ("B", "A"), screen)
    return Exit.DONE
