"""`l40s-deploy tuning`: tuned kernel configs: which a model needs, what each node has, from one node onto all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.cli.options import (
    add_examples,
    add_gang_option,
    add_gangs,
    add_inventory,
    add_json,
    add_layout,
    add_time_limit,
    add_timeout,
    count,
    open_inventory,
)
from orchestrator.cli.progress import patience, words_in_place
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import time_limit
from orchestrator.cli.typed import command_line
from orchestrator.doctor.rules.support.registry import who
from orchestrator.engines.tuned_validity import Holding, State
from orchestrator.engines.tuned_wanted import Wanted
from orchestrator.gang.steps.operation import connected
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import PerNode, collected
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import Exit, InputError
from orchestrator.tuning.kernels import BATCHES
from orchestrator.tuning.pack import DERIVED, INTERPRETED
from orchestrator.tuning.steps.packs import TuningPushResult, fetch, fetched_json, pull, pulled_json, push, push_json
from orchestrator.tuning.steps.run import TunedGang, run_tuning, tuned_json
from orchestrator.tuning.steps.tuning import ASSUMED_GPU, Kit, status_json, tuning_status

LINE_EVERY_S = 30.0
"""How often progress is printed if lines can't be updated in place."""
_STATUS = (
    "l40s-deploy tuning status --model DeepSeek-V3-0324-Block64x64",
    "l40s-deploy tuning status --model DeepSeek-V3-0324 --stack sglang-0.5.23 --layout node-stages --offline",
)
_RUN = (
    "l40s-deploy tuning run --model DeepSeek-V3-0324-Block64x64 l40s.tuned.tar.gz",
    "l40s-deploy tuning run --model MiniMax-M2 --batch 1,8,32 --candidates 100 quick.tuned.tar.gz",
)
_FETCH = (
    "l40s-deploy tuning fetch l40s-dsfp8 --stack sglang-0.4.4-l40s articles.tuned.tar.gz",
    "l40s-deploy tuning fetch l40s-dsfp8 --stack sglang-0.5.23 --checkout ./sglang derived.tuned.tar.gz",
)
_PULL = ("l40s-deploy tuning pull --from node0 --model DeepSeek-V3-0324-Block64x64 l40s.tuned.tar.gz",)
_PUSH = (
    "l40s-deploy tuning push l40s.tuned.tar.gz --check",
    "l40s-deploy tuning push l40s.tuned.tar.gz",
    "l40s-deploy tuning push --remove",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `tuning`."""
    add_examples(parser, *_STATUS, *_RUN, *_FETCH, *_PULL, *_PUSH)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary, configured, examples in (
        ("status", "show which configs a model looks for, and which each node has", _configure_status, _STATUS),
        ("run", "find the best configs on all GPUs of a gang that is down, and pack them", _configure_run, _RUN),
        ("pull", "pack one node's configs for its GPU into a file", _configure_pull, _PULL),
        ("fetch", "make a pack of published configs, verified by commit and digest", _configure_fetch, _FETCH),
        ("push", "install a pack on every node, or remove what was installed", _configure_push, _PUSH),
    ):
        action = actions.add_parser(name, help=summary)
        add_examples(action, *examples)
        if name != "fetch":
            add_inventory(action)
        configured(action)
        add_json(action)


def _configure_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME", help="a profile's name or .yml file")
    _add_stack(parser, "every one for GPUs")
    add_layout(parser)
    add_gangs(parser)
    parser.add_argument("--offline", action="store_true", help="contact no node; show names and shapes only")


def _configure_run(parser: argparse.ArgumentParser) -> None:
    _add_out(parser)
    parser.add_argument("--model", required=True, metavar="NAME", help="a profile's name or .yml file")
    _add_stack(parser)
    add_layout(parser)
    add_gang_option(parser)
    parser.add_argument(
        "--batch",
        type=_batches,
        default=BATCHES,
        metavar="N,N,...",
        help=f"batch sizes (default: SGLang's own, {', '.join(map(str, BATCHES))})",
    )
    parser.add_argument(
        "--candidates", type=count, metavar="N", help="try only this many tiles per shape (default: all that fit)"
    )
    parser.add_argument("--again", action="store_true", help="discard the results of an earlier, interrupted run")
    add_time_limit(parser)


def _configure_pull(parser: argparse.ArgumentParser) -> None:
    _add_out(parser)
    parser.add_argument("--from", dest="node", metavar="NODE", help="source node (default: the first)")
    parser.add_argument(
        "--model", metavar="NAME", help="only the configs that this model uses (default: all for the GPU)"
    )
    _add_stack(parser)


def _configure_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a set of published configs: a name or a .yml file")
    _add_out(parser)
    parser.add_argument("--stack", required=True, metavar="NAME", help="the stack that they are for: a name or .yml")
    parser.add_argument("--gpu", default=ASSUMED_GPU, metavar="NAME", help=f"as NVML names it (default: {ASSUMED_GPU})")
    parser.add_argument(
        "--checkout", metavar="DIR", type=Path, help="read them from a clone of the repository instead of downloading"
    )
    add_timeout(parser, "give up after this time")


def _configure_push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", type=Path, nargs="?", help="pack from `tuning pull`")
    _add_stack(parser)
    add_gang_option(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--check", "--dry-run", action="store_true", help="show what would be written; write nothing")
    ways.add_argument("--remove", action="store_true", help="remove what was installed and restore the originals")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out", metavar="DIR|FILE", type=Path, help="pack to write: FILE.tar, FILE.tar.gz, or a directory"
    )


def _add_stack(parser: argparse.ArgumentParser, default: str = "l40s_stack") -> None:
    parser.add_argument("--stack", metavar="NAME", help=f"a stack's name or .yml file (default: {default})")


def _batches(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(","))


def run(args: argparse.Namespace, screen: Screen) -> int:
    """status, run, pull, fetch or push."""
    return {"status": _status, "run": _run, "pull": _pull, "fetch": _fetch, "push": _push}[args.action](args, screen)


def _run(args: argparse.Namespace, screen: Screen) -> int:
    """0; 3 where a job failed or a file was left out, 4 where a node dropped out."""
    with (
        connected(open_inventory(args, screen)) as operation,
        words_in_place(screen, "tuning", every_s=LINE_EVERY_S) as update,
        time_limit(args.timeout, fix="run the same command again to resume"),
    ):
        done = run_tuning(
            operation,
            _plan(args),
            args.out,
            lambda *pace: update(_pace(*pace)),
            command=command_line(),
            batches=args.batch,
            most=args.candidates,
            again=args.again,
        )
    if screen.as_json:
        screen.json(tuned_json(done, args.out))
    else:
        _show_tuned(done, args.out, screen)
    if done.lost:
        return Exit.UNREACHABLE
    return Exit.FINDINGS if done.failed or done.left else 0


def _plan(args: argparse.Namespace) -> PlanRequest:
    return PlanRequest(model=args.model, stack=args.stack, **args.layout, gangs=tuple(args.gang))


def _pace(done: int, jobs: int, left_s: float | None, trying: Mapping[str, str]) -> str:
    left = ""
    if left_s is not None:
        left = f", about {left_s:.0f} s left" if left_s < 120 else f", about {left_s / 60:.0f} min left"
    tried = "; ".join(f"{place}: {words}" for place, words in sorted(trying.items())[:2])
    return f"tuned {done} of {jobs} jobs{left}" + (f" ({tried})" if tried else "")


def _show_tuned(done: TunedGang, out: Path, screen: Screen) -> None:
    for job in done.jobs:
        result = done.results.get(job.id)
        shape = f"{job.space} at batch {job.batch}"
        if result is None:
            screen.out.print(printable(f"{shape}: {done.failed.get(job.id, 'not tried')}"), style="bold red")
            continue
        before = f"{result['before_us']:.1f} us" if result["before_us"] else "wrong or not running"
        words = "unchanged, nothing is faster" if result["kept"] else f"{result['us']:.1f} us"
        screen.show(f"{shape}: {before} -> {words}")
    for name, why in done.left.items():
        screen.show(f"left out: {name}: {why}")
    for name, failure in done.lost.items():
        screen.out.print(printable(f"{name}: {failure.what}"), style="bold red")
    if done.before:
        screen.say(f"{done.before} results are from an earlier run (--again discards them)")
    if done.pack.made == INTERPRETED:
        screen.say("tuned without a GPU, in Triton's interpreter: the products are checked, but the times say nothing")
    if done.pack.texts:
        screen.show(f"{out}: {len(done.pack.texts)} configs; install: l40s-deploy tuning push {out}")


def _fetch(args: argparse.Namespace, screen: Screen) -> int:
    """0 when the pack is written."""
    with patience(screen, f"fetching {args.name}"):
        published, pack = fetch(
            args.name, args.out, stack_name=args.stack, gpu=args.gpu, checkout=args.checkout, timeout_s=args.timeout
        )
    if screen.as_json:
        screen.json(fetched_json(published, pack, args.out))
        return 0
    say = screen.out.print
    say(printable(f"{args.out}: {len(pack.texts)} configs for {pack.device}, {pack.made}; from {pack.origin}"))
    if pack.made == DERIVED:
        screen.say(f"derived: the same tiles under the names of SGLang {pack.engine_version}, never timed with it")
    elif published.note:
        screen.say(printable(published.note))
    say(printable(f"install: l40s-deploy tuning push {args.out}"))
    return 0


def _pull(args: argparse.Namespace, screen: Screen) -> int:
    inventory = open_inventory(args, screen)
    with patience(screen, "reading the node's tuned configs"):
        pulled = pull(inventory, args.out, node=args.node, model=args.model, stack_name=args.stack)
    for part, why in pulled.left:
        screen.say(f"left out: {part}: {why}")
    if screen.as_json:
        screen.json(pulled_json(pulled, args.out))
    else:
        pack = pulled.pack
        made = f"{pack.device}, SGLang {pack.engine_version}, Triton {pack.triton or 'unknown'}"
        screen.show(f"{args.out}: {len(pack.texts)} configs from {pulled.node}: {made}")
    return 0


def _push(args: argparse.Namespace, screen: Screen) -> int:
    """0; the first failed node's exit code where one failed."""
    if bool(args.pack) == args.remove:
        raise InputError(
            "found both or neither of PACK and --remove; wanted one",
            where="command line",
            fix="tuning push PACK | --remove",
        )
    inventory = open_inventory(args, screen)
    with patience(screen, "changing the nodes' tuned configs"):
        done = push(inventory, args.pack, stack_name=args.stack, gangs=tuple(args.gang), check=args.check)
    if screen.as_json:
        screen.json(push_json(done, [node.name for node in inventory.nodes]))
    else:
        _show_push(done, check=args.check, screen=screen)
    return next((failure.exit_code for failure in done.failures.values()), 0)


def _counts_words(put: TuningPushResult, would: str) -> str:
    """would: what comes before a change that is not made, as 'would be '"""
    counts = (
        (f"{would}written", put.written),
        ("unchanged", put.unchanged),
        (f"{would}restored", put.restored),
        (f"{would}removed", put.removed),
    )
    return ", ".join(f"{len(places)} {word}" for word, places in counts if places)


def _show_push(done: PerNode[TuningPushResult], *, check: bool, screen: Screen) -> None:
    would = "would be " if check else ""
    for name, put in done.values.items():
        screen.show(f"{name}: {_counts_words(put, would) or 'nothing installed by this tool'}")
        for place, why in put.left.items():
            screen.show(f"  {place}: {why}")
        for remark in put.remarks:
            screen.show(f"  {remark}")
    for name, failure in done.failures.items():
        screen.out.print(printable(f"{name}: {failure.what}"), style="bold red")
        screen.show(f"  fix: {failure.fix}")
    if not check and any(put.written or put.restored or put.removed for put in done.values.values()):
        screen.say("running engines keep the old configs. `restart` of a gang makes it use the new ones")


def _status(args: argparse.Namespace, screen: Screen) -> int:
    """0; 3 where an engine would fail or answer wrongly with a config, 4 where a node did not answer."""
    inventory = _inventory(args, screen)
    with patience(screen, "inspecting the nodes' tuned configs"):
        kits = tuning_status(inventory, _plan(args), offline=args.offline)
    if screen.as_json:
        screen.json(status_json(args.model, kits))
    else:
        for kit in kits:
            _show(kit, screen)
    if any(kit.harms for kit in kits):
        return Exit.FINDINGS
    return Exit.UNREACHABLE if any(kit.failures for kit in kits) else 0


def _inventory(args: argparse.Namespace, screen: Screen) -> Inventory | None:
    """None if no cluster is named and none is needed: the reference cluster gives names too."""
    try:
        return open_inventory(args, screen)
    except InputError:
        if args.inventory or args.gang:
            raise
        screen.say("no inventory: 4 nodes with 8 GPUs NVIDIA L40S each are assumed")
        return None


def _show(kit: Kit, screen: Screen) -> None:
    triton = f"Triton {kit.triton} ({kit.triton_source})" if kit.triton else "Triton of unknown version"
    layout = str(kit.layout) if kit.layout else "no layout"
    head = f"{kit.stack.name}: SGLang {kit.stack.engine_version}, {triton}, gang {kit.gang}, {layout}, "
    screen.out.print(printable(f"{head}{kit.gpu} ({kit.gpu_source})"), style="bold")
    if kit.refusal:
        screen.show(f"  {kit.refusal.what}")
        screen.show(f"  fix: {kit.refusal.fix}")
        return
    for line in (*_files(kit), *_of_nodes(kit), *_of_files(kit), *_of_defaults(kit)):
        screen.show(f"  {line}")
    screen.out.print()


def _files(kit: Kit) -> Iterator[str]:
    """Each wanted file below its folder: `experts, E=257, N=64 (all 4 nodes: tuned)`."""
    for folder in dict.fromkeys(wanted.folder for wanted in kit.wanted):
        yield f"{folder}/"
        for place, file in enumerate(kit.wanted):
            if file.folder == folder:
                names = collected((_word(rows[place], file), name) for name, rows in kit.rows.items())
                states = "; ".join(f"{who(nodes, len(kit.rows))}: {state}" for state, nodes in names.items())
                yield f"  {file.name}"
                yield f"      {file.part}, {file.words}" + (f" ({states})" if states else "")


def _word(holding: Holding, wanted: Wanted) -> str:
    if holding.harms:
        return "UNUSABLE"
    if holding.state is State.FALLBACK:
        return f"taken from {holding.folder.rpartition('/')[2]}" if holding.name == wanted.name else "as the experts'"
    return {State.TUNED: "tuned", State.DEFAULT: "none", State.FAILS: "FAILS"}[holding.state]


def _other_engines(kit: Kit) -> Iterator[str]:
    engines = {name: held.versions.get("sglang", "") for name, held in kit.holdings.items() if held.root}
    if odd := [name for name, version in engines.items() if version and version != kit.stack.engine_version]:
        yield (
            f"{who(odd, len(engines))}: sglang {engines[odd[0]]} is installed, not the stack's "
            f"{kit.stack.engine_version}: these rows are for the stack's version"
        )


def _of_nodes(kit: Kit) -> Iterator[str]:
    for name, failure in kit.failures.items():
        yield f"{name}: {failure.what} ({failure.fix})"
    if absent := [name for name, held in kit.holdings.items() if not held.root]:
        yield f"not installed on {who(absent, len(kit.holdings))}: l40s-deploy prepare --stack {kit.stack.name}"
    yield from _other_engines(kit)
    if len(tritons := sorted({held.versions.get("triton", "") for held in kit.holdings.values()} - {""})) > 1:
        yield f"the nodes have different Triton versions: {', '.join(tritons)}; each is judged by its own"
    for name, held in kit.holdings.items():
        yield from (f"{name}: {path} can't be read: {error}" for path, error in held.errors.items())


def _of_files(kit: Kit) -> Iterator[str]:
    """Each flaw once, with its nodes; and files that differ between nodes."""
    for place, wanted in enumerate(kit.wanted):
        holdings = {name: rows[place] for name, rows in kit.rows.items()}
        flaws = collected((flaw, name) for name, holding in holdings.items() for flaw in holding.flaws)
        for flaw, names in flaws.items():
            yield f"{flaw.severity.value}: {wanted.words} on {who(names, len(holdings))}: {flaw.text}"
        if len({holding.sha256 for holding in holdings.values() if holding.sha256}) > 1:
            yield f"slow: {wanted.words}: the nodes have different files of this name"


def _of_defaults(kit: Kit) -> Iterator[str]:
    """What runs with the engine's built-in tiles."""
    if kit.compiled:
        yield (
            "the profile asks for torch.compile, and this version looks up no GEMM config while it compiles: what is "
            "compiled runs with default tiles, tuned or not (torch_compile_max_bs in the profile; not measured)"
        )
    needed = [place for place, wanted in enumerate(kit.wanted) if not wanted.optional]
    if missing := sum(any(rows[place].state is State.DEFAULT for rows in kit.rows.values()) for place in needed):
        yield (
            f"none, on at least one node: {missing} of {len(needed)}; there the engine takes its default tiles "
            "('Using default ... kernel config' in its log); the cost is not measured"
        )
        yield (
            "do not rename a larger GPU's file to this GPU's name: an L40S has 101376 bytes of shared memory per "
            "block, an A100 166912; kernels fail with OutOfResources"
        )
