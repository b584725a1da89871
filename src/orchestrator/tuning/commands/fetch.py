"""`l40s-deploy tuning fetch`: published kernel configs into a pack for `tuning push`."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli.options import add_examples, add_json, add_timeout
from orchestrator.cli.progress import patience
from orchestrator.cli.screen import Screen, printable
from orchestrator.tuning.pack import DERIVED
from orchestrator.tuning.steps.fetch import fetch, fetched_json
from orchestrator.tuning.steps.tuning import ASSUMED_GPU

EXAMPLES = (
    "l40s-deploy tuning fetch l40s-dsfp8 --stack sglang-0.4.4-l40s articles.tuned.tar.gz",
    "l40s-deploy tuning fetch l40s-dsfp8 --stack sglang-0.5.23 --checkout ./sglang derived.tuned.tar.gz",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `tuning fetch`."""
    add_examples(parser, *EXAMPLES)
    parser.add_argument("name", metavar="NAME", help="a set of published configs: a name or a .yml file")
    parser.add_argument(
        "out", metavar="DIR|FILE", type=Path, help="pack to write: FILE.tar, FILE.tar.gz, or a directory"
    )
    parser.add_argument("--stack", required=True, metavar="NAME", help="the stack that they are for: a name or .yml")
    parser.add_argument("--gpu", default=ASSUMED_GPU, metavar="NAME", help=f"as NVML names it (default: {ASSUMED_GPU})")
    parser.add_argument(
        "--checkout", metavar="DIR", type=Path, help="read them from a clone of the repository instead of downloading"
    )
    add_timeout(parser, "give up after this time")
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when the pack is written."""
    with patience(screen, f"fetching {args.name}"):
        published, pack = fetch(
            args.name,
            args.out,
            stack_name=args.stack,
            gpu=args.gpu,
            checkout=args.checkout,
            timeout_s=args.timeout,
        )
    if screen.as_json:
        screen.json(fetched_json(published, pack, args.out))
        return 0
    screen.out.print(
        printable(f"{args.out}: {len(pack.texts)} configs for {pack.device}, {pack.made}; from {pack.origin}")
    )
    if pack.made == DERIVED:
        screen.say(f"derived: the same tiles under the names of SGLang {pack.engine_version}, never timed with it")
    elif published.note:
        screen.say(printable(published.note))
    screen.out.print(printable(f"install: l40s-deploy tuning push {args.out}"))
    return 0
