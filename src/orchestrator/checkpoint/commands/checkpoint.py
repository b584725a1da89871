"""`l40s-deploy checkpoint`: download, re-block to a finer block, check, verify, copy to all nodes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

from orchestrator.checkpoint.commands import copies
from orchestrator.checkpoint.steps.checkpoint import check, reblock, survey
from orchestrator.cli.options import add_examples, add_nodes, add_time_limit, add_usual, count, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import Transfer, TransferPicture
from orchestrator.gang.commands.outcome import add_dry_run
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.words import counted
from orchestrator.planning.judgement import Judgement
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.jobs import Reblocked, ReblockLine, ReblockRequest, WouldReblock
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.sizes import in_words

REBLOCK_EXAMPLES = (
    "l40s-deploy checkpoint reblock /models/V3-0324 /models/V3-0324-Block64x64 --block 64 --verify",
    "l40s-deploy checkpoint reblock --node node0 /workspace/V3-0324 /workspace/V3-0324-Block64x64",
)
CHECK_EXAMPLES = (
    "l40s-deploy checkpoint check /models/V3-0324-Block64x64",
    "l40s-deploy checkpoint check node0:/workspace/V3-0324-Block64x64",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The verb's own verbs and their options."""
    of_others = (copies.PUSH_EXAMPLES[0], copies.VERIFY_EXAMPLES[0])
    add_examples(parser, copies.DOWNLOAD_EXAMPLES[0], REBLOCK_EXAMPLES[0], CHECK_EXAMPLES[0], *of_others)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, (words, configured, _) in ACTIONS.items():
        configured(actions.add_parser(action, help=words))


def _configure_reblock(parser: argparse.ArgumentParser) -> None:
    add_usual(parser, *REBLOCK_EXAMPLES)
    parser.add_argument(
        "source", metavar="SRC", help="directory with config.json, on this machine or as NODE:/path; read-only"
    )
    parser.add_argument(
        "target",
        metavar="DST",
        help="directory to create, or to resume after an interruption; on the same machine as SRC",
    )
    add_nodes(parser, "SRC and DST are on this node, and the work runs there (repeatable: one node after the other)")
    parser.add_argument(
        "--block", type=int, default=64, metavar="N", help="side length of the new blocks (default: 64)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare SRC and DST bit by bit; if DST is already complete, only compare"
    )
    parser.add_argument(
        "--accept-scales",
        action="store_true",
        help="also write scales that no quantisation gives (NaN, infinite, negative); by default they are an error",
    )
    parser.add_argument(
        "--jobs", type=count, metavar="N", help="shards to process in parallel (default: number of CPUs, at most 8)"
    )
    add_dry_run(parser, "check SRC and DST and show what would be written; write nothing")
    add_time_limit(parser)


def _configure_check(parser: argparse.ArgumentParser) -> None:
    add_usual(parser, *CHECK_EXAMPLES)
    parser.add_argument("directory", metavar="DIR", help="directory on this machine, or NODE:/path")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Exit code 0; check: 3 where an engine would refuse; reblock --verify: 7 where the sides differ."""
    _, _, work = ACTIONS[args.action]
    return work(args, screen)


def _rehearse(args: argparse.Namespace, screen: Screen) -> int:
    documents = []
    for on in args.node or [""]:
        node, request = _asked(args, on, screen)
        would = survey(node, request)
        documents.append({"node": node.name if node else "", "target": request.target, **would.as_json()})
        if not screen.as_json:
            place = f"{node.name}:{request.target}" if node else request.target
            screen.show(f"{place}: {_words(would)}")
    if screen.as_json:
        screen.json({"dry_run": True, "nodes": documents})
    else:
        screen.out.print("nothing was written")
    return 0


def _words(would: WouldReblock) -> str:
    if not would.todo and would.state == "foreign":
        return "already complete; nothing would be written"
    kept = f"; {would.shards - would.todo} are kept from an earlier run" if would.todo < would.shards else ""
    blocks = "{}x{}".format(*would.new_block)
    room = f"{in_words(would.bytes)}, {in_words(would.free)} are free"
    short = "; that suffices only where the file system shares blocks" if would.bytes > would.free else ""
    return f"{would.todo} of {would.shards} shards would be written in blocks of {blocks}: {room}{short}{kept}"


def _reblock(args: argparse.Namespace, screen: Screen) -> int:
    if args.dry_run:
        return _rehearse(args, screen)
    documents = []
    with copies.resumable(args, screen):
        for on in args.node or [""]:
            started = time.monotonic()
            node, request = _asked(args, on, screen)
            with TransferPicture(screen) as picture:
                outcome = reblock(node, request, partial(_show_pace, picture))
            seconds = time.monotonic() - started
            document = {"source": args.source, "target": args.target, **outcome.as_json(), "seconds": round(seconds, 3)}
            documents.append({**document, **({"node": on} if on else {})})
            if not screen.as_json:
                screen.show(*_summary(f"{on}:{args.target}" if on else args.target, outcome, seconds))
    if screen.as_json:
        screen.json(documents[0] if len(documents) == 1 else {"nodes": documents})
    return 0


def _asked(args: argparse.Namespace, on: str, screen: Screen) -> tuple[NodeSpec | None, ReblockRequest]:
    """The node that the work runs on, None for this machine, with SRC and DST there."""
    node, source = _place(args, f"{on}:{args.source}" if on else args.source, screen)
    other, target = _place(args, f"{on}:{args.target}" if on else args.target, screen)
    if node != other:
        raise InputError(
            "SRC and DST are on different machines; both must be on the same one",
            where=f"{args.source} {args.target}",
            fix="name the same node for both, then copy the result to the others with `checkpoint push`",
        )
    request = ReblockRequest(
        source=source,
        target=target,
        block=args.block,
        verify=args.verify,
        jobs=args.jobs,
        accept_scales=args.accept_scales,
    )
    return node, request


def _place(args: argparse.Namespace, place: str, screen: Screen) -> tuple[NodeSpec | None, str]:
    """A directory of this machine as it was typed, or the node and the path of NODE:/path. Raises InputError."""
    if ":" not in place.partition("/")[0]:
        return None, place
    from orchestrator.checkpoint.steps.push import split_place

    return split_place(open_inventory(args, screen), place)


def _summary(target: str, outcome: Reblocked, seconds: float) -> Iterator[str]:
    written, proof = outcome.written, outcome.proof
    if written and written.done > written.resumed:
        parts = [f"{in_words(written.copied)} copied", f"{in_words(written.shared)} shared with the source"]
        parts += [f"{in_words(written.resumed)} kept from an earlier run"] if written.resumed else []
        yield (
            f"{target}: {counted(written.shards, 'shard')} "
            f"in blocks of {outcome.new_block[0]}x{outcome.new_block[1]}, "
            f"{', '.join(parts)}, {in_words(written.scales)} of scales, in {seconds:.1f} s"
        )
    elif written:
        yield f"{target}: already complete; nothing written"
    if proof:
        yield (
            f"verified: {proof.tensors} tensors ({proof.scales} of them scales) and {proof.files} files, "
            f"{in_words(proof.bytes)}, dequantise to the same bits as the source"
        )


def _show_pace(picture: TransferPicture, line: ReblockLine) -> None:
    if (now := line.progress) is not None:
        picture.show([Transfer(line.doing, now.done, now.total, f"{now.shards_done} of {now.shards} shards, {{}}")])


def _check(args: argparse.Namespace, screen: Screen) -> int:
    judgement = checked_at(args, args.directory, screen)
    if screen.as_json:
        screen.json(judgement.as_json())
    else:
        _draw(judgement, screen)
    return 0 if judgement.loads else 3


def checked_at(args: argparse.Namespace, place: str, screen: Screen) -> Judgement:
    """A directory of this machine, or NODE:/path. Raises InputError, Unreachable."""
    return check(*_place(args, place, screen))


def _draw(judgement: Judgement, screen: Screen) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _rows(judgement):
        table.add_row(label, Text(printable(value)))
    screen.show(table)
    for finding in judgement.findings:
        style = "bold red" if finding.severity is Severity.STOP else "yellow"
        screen.show(Text.assemble((f"{finding.severity.value}: {finding.id}", style), f" {printable(finding.title)}"))
        texts = {"effect": finding.effect, "fix": finding.fix}
        screen.show(*(Text(f"  {word}: {printable(text)}") for word, text in texts.items() if text))


def _rows(judgement: Judgement) -> Iterator[tuple[str, str]]:
    facts, dims = judgement.facts, judgement.dimensions
    yield "directory", facts["path"]
    yield "model", f"{judgement.architecture or 'unknown'}, {len(facts['layers'])} layers in the shards"
    experts = f"experts {dims.n_routed_experts} x {dims.moe_intermediate_size}"
    heads = f"heads {dims.num_attention_heads}, vocabulary {dims.vocab_size}"
    yield "dimensions", f"hidden {dims.hidden_size}, intermediate {dims.intermediate_size}, {experts}, {heads}"
    block = f" in blocks of {facts['block'][0]}x{facts['block'][1]}" if facts["block"] else ""
    yield "quantisation", f"{judgement.method}{block}"
    shards = facts["shards"]
    yield "shards", f"{shards['readable']} of {shards['named']} readable, {in_words(facts['bytes']['files'])}"
    for dtype, kind in facts["tensors"]["by_dtype"].items():
        yield f"  {dtype}", f"{kind['count']} tensors, {in_words(kind['bytes'])}"
    allowed = (str(degree) for degree, refusal in judgement.degrees.items() if not refusal)
    yield "tensor parallel", ", ".join(allowed) or "unknown"
    if refused := next(((degree, refusal) for degree, refusal in judgement.degrees.items() if refusal), None):
        yield "", f"not {refused[0]}: {refused[1]}"
    yield "an engine", "loads it" if judgement.loads else "refuses it, or loads it incorrectly:"


Configure = Callable[[argparse.ArgumentParser], None]
Work = Callable[[argparse.Namespace, Screen], int]
ACTIONS: dict[str, tuple[str, Configure, Work]] = {
    "download": (
        "download a model from Hugging Face or ModelScope to one node",
        copies.configure_download,
        copies.run_download,
    ),
    "reblock": ("write a copy of an FP8 checkpoint with finer quantisation blocks", _configure_reblock, _reblock),
    "check": (
        "show dimensions, quantisation, shards, and what an engine would refuse",
        _configure_check,
        _check,
    ),
    "push": (
        "copy a checkpoint to all nodes; each byte leaves the source once",
        copies.configure_push,
        copies.run_push,
    ),
    "verify": ("check by SHA-256 that all nodes have the same files", copies.configure_verify, copies.run_verify),
}
"""By its word: what it is for, its options, and its work."""
