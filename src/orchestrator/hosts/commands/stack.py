"""`l40s-deploy stack`: a stack's packages as one file, for nodes that reach no package index."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.options import add_examples, add_json, add_timeout
from orchestrator.cli.progress import words_in_place
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import duration
from orchestrator.rooms import answers

_LINE_EVERY_S = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `stack`."""
    examples = (
        "l40s-deploy stack build sglang-0.5.23-cpu --out cpu.bundle",
        "l40s-deploy stack build sglang-0.5.23 --out gpu.bundle --debian    # for nodes without Debian mirrors too",
        "l40s-deploy stack build ./mine.yml --out mine.bundle --python 3.12    # needs mine.lock beside it",
        "l40s-deploy stack build router --out router.bundle",
        "l40s-deploy prepare --bundle cpu.bundle --bundle router.bundle",
        "l40s-deploy stack recipe sglang-0.4.4-l40s --out l40s-image    # then run l40s-image/build.sh",
        "l40s-deploy stack check --model DeepSeek-V3-0324-Block64x64",
    )
    add_examples(parser, *examples)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_build(actions, examples)
    recipe = actions.add_parser("recipe", help="write a recipe for a container image of a stack that has no wheels")
    add_examples(recipe, *examples)
    recipe.add_argument("stack", metavar="STACK", help="a stack's name, or its .yml with the .recipe folder beside it")
    recipe.add_argument("--out", required=True, metavar="DIR", type=Path, help="a folder, new or empty")
    add_json(recipe)
    answers("actions", "stack", actions)


def _add_build(actions: argparse._SubParsersAction[argparse.ArgumentParser], examples: Sequence[str]) -> None:
    build = actions.add_parser("build", help="download every package of the stack's lock into one file")
    add_examples(build, *examples)
    build.add_argument("stack", metavar="STACK", help="a stack's name, or its .yml with the .lock beside it; or router")
    build.add_argument("--out", required=True, metavar="FILE", type=Path, help="bundle to write")
    build.add_argument(
        "--python", metavar="X.Y", help="the nodes' Python, for compiled packages (default: the stack's)"
    )
    build.add_argument(
        "--find-links", default="", metavar="PLACE", help="extra package location for pip: an index, a page or a folder"
    )
    build.add_argument(
        "--debian",
        nargs="?",
        const="",
        metavar="NAME,...",
        help="also include the Debian packages that `prepare` installs (or these), for this machine's Debian release",
    )
    build.add_argument(
        "--vocabularies",
        nargs="?",
        const="",
        metavar="DIR",
        help="also include the vocabularies that tokenizers download (gpt-oss), from a folder or their usual source",
    )
    add_timeout(build, "give up after this time")
    add_json(build)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when the bundle or the recipe is written, or every kernel is right."""
    for code in answers("instead", "stack", args, screen):
        return int(code)
    return {"recipe": _recipe, "build": _build}[args.action](args, screen)


def _recipe(args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.hosts.steps.stack import write_recipe

    files = write_recipe(args.stack, args.out)
    if screen.as_json:
        screen.json({"folder": str(args.out), "files": [str(file.relative_to(args.out)) for file in files]})
        return 0
    for file in files:
        screen.show(str(file))
    screen.say(printable(f"next: run {args.out}/build.sh on a machine with Docker, network access and 60 GB of disk"))
    return 0


def _build(args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.hosts.steps.stack import build

    began = time.monotonic()

    def tell(package: str, place: int, count: int) -> None:
        passed = time.monotonic() - began
        left = passed / place * (count - place)
        update(f"{place} of {count}: {package}, {duration(passed)} so far, about {duration(left)} left")

    with words_in_place(screen, f"downloading the packages of {args.stack}", every_s=_LINE_EVERY_S) as update:
        bundle = build(
            args.stack,
            args.out,
            tell,
            python=args.python,
            find_links=args.find_links,
            words_from=args.vocabularies,
            debian_packages=None if args.debian is None else tuple(filter(None, args.debian.split(","))),
            timeout_s=args.timeout,
        )
    seconds = time.monotonic() - began
    if screen.as_json:
        same = {name: getattr(bundle, name) for name in ("stack", "python", "digest", "packages", "image", "bytes")}
        words, debian = list(bundle.vocabularies), bundle.debian or None
        screen.json(
            {"bundle": str(bundle.path), **same, "vocabularies": words, "debian": debian, "seconds": round(seconds, 3)}
        )
        return 0
    size = f"{bundle.bytes / (1 << 20):.1f} MiB"
    holds = "an image" if bundle.image else f"{bundle.packages} packages for Python {bundle.python}"
    screen.show(f"{bundle.path}: {bundle.stack}, {holds}, {size}, digest {bundle.digest[:16]}, after {seconds:.0f} s")
    return 0
