"""`l40s-deploy checkpoint`: download, re-block to a finer block, inspect, copy to all nodes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.commands import download as checkpoint_download
from orchestrator.checkpoint.commands import push as checkpoint_push
from orchestrator.checkpoint.commands import verify as checkpoint_verify
from orchestrator.checkpoint.steps.checkpoint import (
    inspect_here,
    inspect_there,
    reblock_here,
    reblock_there,
    survey_here,
    survey_there,
)
from orchestrator.cli.options import add_examples, add_inventory, add_json, add_nodes, add_time_limit, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import Transfer, TransferPicture, size, time_limit
from orchestrator.gang.commands.dry_run import add_dry_run
from orchestrator.model.errors import InputError
from orchestrator.model.finding import Severity
from orchestrator.model.inventory import NodeSpec
from orchestrator.planning.judgement import Judgement
from orchestrator.protocol.jobs import Progress, Reblocked, WouldReblock


def configure(parser: argparse.ArgumentParser) -> None:
    """The verb's own verbs and their options."""
    reblock = "l40s-deploy checkpoint reblock /models/V3-0324 /models/V3-0324-Block64x64 --block 64 --prove"
    there = "l40s-deploy checkpoint reblock --node node0 /workspace/V3-0324 /workspace/V3-0324-Block64x64"
    look = "l40s-deploy checkpoint inspect /models/V3-0324-Block64x64"
    add_examples(
        parser, checkpoint_download.EXAMPLES[0], reblock, look, checkpoint_push.EXAMPLES[0], checkpoint_verify.EXAMPLE
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    downloading = actions.add_parser("download", help="download a model from Hugging Face or ModelScope to one node")
    checkpoint_download.configure(downloading)
    finer = actions.add_parser("reblock", help="write a copy of an FP8 checkpoint with finer quantisation blocks")
    add_examples(finer, reblock, there)
    _configure_reblock(finer)
    inspect = actions.add_parser(
        "inspect", help="show dimensions, quantisation, shards, and what an engine would refuse"
    )
    add_examples(inspect, look, "l40s-deploy checkpoint inspect node0:/workspace/V3-0324-Block64x64")
    inspect.add_argument("directory", metavar="DIR", help="directory on this machine, or NODE:/path")
    add_inventory(inspect)
    add_json(inspect)
    pushing = actions.add_parser("push", help="copy a checkpoint to all nodes; each byte leaves the source once")
    checkpoint_push.configure(pushing)
    verifying = actions.add_parser("verify", help="check by SHA-256 that all nodes have the same files")
    checkpoint_verify.configure(verifying)


def _configure_reblock(parser: argparse.ArgumentParser) -> None:
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
        "--prove", action="store_true", help="compare SRC and DST bit by bit; if DST is already complete, only compare"
    )
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="shards to process in parallel (default: number of CPUs, at most 8)"
    )
    add_dry_run(parser, "check SRC and DST and show what would be written; write nothing")
    add_time_limit(parser)
    add_inventory(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Exit code 0; inspect: 3 where an engine would refuse; reblock --prove: 7 where the sides differ."""
    if args.action == "download":
        return checkpoint_download.run(args, screen)
    if args.action == "push":
        return checkpoint_push.run(args, screen)
    if args.action == "verify":
        return checkpoint_verify.run(args, screen)
    if args.action == "inspect":
        return _inspect(args, screen)
    return _reblock(args, screen)


def _rehearse(args: argparse.Namespace, screen: Screen) -> int:
    documents = []
    for on in args.node or [""]:
        node, source, target = _places(args, on, screen)
        if node is None:
            found = survey_here(Path(source), Path(target), block=args.block)
        else:
            found = survey_there(node, source, target, block=args.block)
        documents.append({"node": node.name if node else "", "target": target, **found.as_json()})
        if not screen.as_json:
            place = f"{node.name}:{target}" if node else target
            screen.out.print(printable(f"{place}: {_words(found)}"))
    if screen.as_json:
        screen.json({"dry_run": True, "nodes": documents})
    else:
        screen.out.print("nothing was written")
    return 0


def _words(found: WouldReblock) -> str:
    if not found.todo and found.state == "foreign":
        return "already complete; nothing would be written"
    kept = f"; {found.shards - found.todo} are kept from an earlier run" if found.todo < found.shards else ""
    blocks = "{}x{}".format(*found.new_block)
    room = f"{size(found.bytes)}, {size(found.free)} are free"
    short = "; that suffices only where the file system shares blocks" if found.bytes > found.free else ""
    return f"{found.todo} of {found.shards} shards would be written in blocks of {blocks}: {room}{short}{kept}"


def _reblock(args: argparse.Namespace, screen: Screen) -> int:
    if args.dry_run:
        return _rehearse(args, screen)
    documents = []
    again = "run the same command again to resume"
    try:
        with time_limit(args.timeout, fix=again):
            for node in args.node or [""]:
                started = time.monotonic()
                outcome = _run(args, node, screen)
                seconds = time.monotonic() - started
                documents.append({**_document(args, outcome, seconds), **({"node": node} if node else {})})
                if not screen.as_json:
                    screen.out.print(_summary(f"{node}:{args.target}" if node else args.target, outcome, seconds))
    except KeyboardInterrupt:
        screen.say(f"stopped; {again}")
        raise
    if screen.as_json:
        screen.json(documents[0] if len(documents) == 1 else {"nodes": documents})
    return 0


def _run(args: argparse.Namespace, on: str, screen: Screen) -> Reblocked:
    node, source, target = _places(args, on, screen)
    with TransferPicture(screen) as picture:
        report = partial(_show_pace, picture)
        how = {"block": args.block, "with_proof": args.prove, "jobs": args.jobs, "report": report}
        if node is None:
            return reblock_here(Path(source), Path(target), **how)
        return reblock_there(node, source, target, **how)


def _places(args: argparse.Namespace, on: str, screen: Screen) -> tuple[NodeSpec | None, str, str]:
    """The node that the work runs on, None for this machine, with SRC and DST there."""
    source, target = (f"{on}:{place}" if on else place for place in (args.source, args.target))
    if not any(":" in place.partition("/")[0] for place in (source, target)):
        return None, source, target
    from orchestrator.checkpoint.steps.push import split_place

    inventory = open_inventory(args, screen)
    (node, source_path), (other, target_path) = (split_place(inventory, place) for place in (source, target))
    if node != other:
        raise InputError(
            "SRC and DST are on different machines; both must be on the same one",
            where=f"{source} {target}",
            fix="name the same node for both, then run `l40s-deploy checkpoint push NODE:DST`",
        )
    return node, source_path, target_path


def _document(args: argparse.Namespace, outcome: Reblocked, seconds: float) -> dict[str, Any]:
    return {
        "source": str(args.source),
        "target": str(args.target),
        **outcome.as_json(),
        "seconds": round(seconds, 3),
    }


def _summary(target: str, outcome: Reblocked, seconds: float) -> str:
    lines = []
    if written := outcome.written:
        fresh = written.done - written.resumed
        if fresh:
            parts = [f"{size(written.copied)} copied", f"{size(written.shared)} shared with the source"]
            parts += [f"{size(written.resumed)} kept from an earlier run"] if written.resumed else []
            shards = f"{written.shards} shard{'s' * (written.shards != 1)}"
            lines.append(
                f"{target}: {shards} in blocks of {outcome.new_block[0]}x{outcome.new_block[1]}, "
                f"{', '.join(parts)}, {size(written.scales)} of scales, in {seconds:.1f} s"
            )
        else:
            lines.append(f"{target}: already complete; nothing written")
    if proof := outcome.proof:
        lines.append(
            f"proved: {proof.tensors} tensors ({proof.scales} of them scales) and {proof.files} files, "
            f"{size(proof.bytes)}, dequantise to the same bits as the source"
        )
    return printable("\n".join(lines))


def _show_pace(picture: TransferPicture, what: str, now: Progress) -> None:
    words = f"{now.shards_done} of {now.shards} shards, {{}}"
    picture.show([Transfer(what, now.done, now.total, words)])


def _inspect(args: argparse.Namespace, screen: Screen) -> int:
    judgement = inspect_at(args, args.directory, screen)
    if screen.as_json:
        screen.json(judgement.as_json())
    else:
        _draw(judgement, screen)
    return 0 if judgement.loads else 3


def inspect_at(args: argparse.Namespace, place: str, screen: Screen) -> Judgement:
    """A directory of this machine, or NODE:/path. Raises InputError, Unreachable."""
    if ":" not in place.partition("/")[0]:
        return inspect_here(Path(place))
    from orchestrator.checkpoint.steps.push import split_place

    node, path = split_place(open_inventory(args, screen), place)
    assert node is not None
    return inspect_there(node, path)


def _draw(judgement: Judgement, screen: Screen) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _rows(judgement):
        table.add_row(label, Text(printable(value)))
    screen.out.print(table)
    for finding in judgement.findings:
        style = "bold red" if finding.severity is Severity.STOP else "yellow"
        line = Text.assemble((f"{finding.severity.value}: {finding.id}", style), f" {printable(finding.title)}")
        screen.out.print(line)
        for word, text in (("effect", finding.effect), ("fix", finding.fix)):
            if text:
                screen.out.print(Text(f"  {word}: {printable(text)}"))


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
    yield "shards", f"{shards['readable']} of {shards['named']} readable, {size(facts['bytes']['files'])}"
    for dtype, kind in facts["tensors"]["by_dtype"].items():
        yield f"  {dtype}", f"{kind['count']} tensors, {size(kind['bytes'])}"
    allowed = [str(degree.tensor_parallel) for degree in judgement.degrees if not degree.refusal]
    yield "tensor parallel", f"{', '.join(allowed) or 'unknown'}"
    refused = next((degree for degree in judgement.degrees if degree.refusal), None)
    if refused:
        yield "", f"not {refused.tensor_parallel}: {refused.refusal}"
    yield "an engine", "loads it" if judgement.loads else "refuses it, or loads it incorrectly:"


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number
