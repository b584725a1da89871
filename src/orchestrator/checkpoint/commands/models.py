"""`l40s-deploy models`: every model that there is a profile for, and the layouts that fit this cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checkpoint.commands.checkpoint import inspect_at
from orchestrator.cli.options import add_examples, add_gang_option, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.loading import resources
from orchestrator.loading.which import choose_inventory
from orchestrator.model.chosen import chosen_gangs
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.offers import LayoutFit, ModelOffer
from orchestrator.planning.steps.models import ASSUMED, ModelListing, add_model, list_models, models_json

if TYPE_CHECKING:
    from rich.table import Table


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser, "l40s-deploy models -i inventory/reference.yml", "l40s-deploy models add /workspace/GLM-4.5-Air-FP8"
    )
    add_inventory(parser)
    add_gang_option(parser)
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: l40s_stack)")
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="add")
    adding = actions.add_parser("add", help="create a profile from a checkpoint's config.json")
    add_examples(
        adding,
        "l40s-deploy models add /workspace/GLM-4.5-Air-FP8",
        "l40s-deploy models add node0:/workspace/GLM-4.5-Air-FP8",
    )
    adding.add_argument("directory", metavar="DIR", help="checkpoint directory on this machine, or NODE:/path")
    adding.add_argument("-i", "--inventory", default=argparse.SUPPRESS, metavar="FILE", help="for NODE:/path")
    adding.add_argument("--name", metavar="NAME", help="the profile's name (default: the directory's)")
    adding.add_argument("--out", type=Path, metavar="FILE", help="default: models/NAME.yml beside the inventory")
    adding.add_argument("--force", action="store_true", help="overwrite an existing profile")
    adding.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """List, or add."""
    if args.action == "add":
        return _add(args, screen)
    gangs = chosen_gangs(open_inventory(args, screen), tuple(args.gang))
    listed = list_models(gangs, args.stack)
    if args.json:
        screen.json(models_json(listed))
        return 0
    for gang in dict.fromkeys(offer.gang for each in listed for offer in each.offers):
        _show_gang(gang, listed, screen)
    screen.out.print(f"GPUs: {ASSUMED}")
    screen.out.print("*: the default of `plan`; number: KV tokens. Layouts not marked as measured are calculated.")
    for basis, those in _bases(listed).items():
        of = f" of {', '.join(those)}" if len(gangs) > 1 else ""
        screen.out.print(printable(f"A-B/s{of}: tokens/s decoded for 1 and for 128 requests, {basis}."))
    return 0


def _bases(listed: Sequence[ModelListing]) -> dict[str, list[str]]:
    """What the speeds of each gang's first layout rest on, with the gangs of which it is said."""
    first: dict[str, str] = {}
    for of in (offer for each in listed for offer in each.offers):
        for fit in of.fits:
            if fit.speeds is not None:
                first.setdefault(of.gang, fit.speeds.basis)
    found: dict[str, list[str]] = {}
    for gang, basis in first.items():
        found.setdefault(basis, []).append(gang)
    return found


def _show_gang(gang: str, listed: tuple[ModelListing, ...], screen: Screen) -> None:
    mine = [(each, offer) for each in listed for offer in each.offers if offer.gang == gang]
    _, first = mine[0]
    stacks = sorted({offer.stack for _, offer in mine})
    screen.out.print(printable(f"gang {gang}: {first.nodes} x {first.gpus_per_node} GPUs, by {', '.join(stacks)}"))
    screen.out.print(_table(mine))
    for what, (names, offer) in _refusals(mine).items():
        screen.out.print(printable(f"{', '.join(names)}: {what}"))
        screen.out.print(printable(f"  {offer.instead}"))


def _table(mine: Sequence[tuple[ModelListing, ModelOffer]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "weights", "layouts that fit"):
        table.add_column(title, overflow="fold", no_wrap=title == "model")
    for each, offer in mine:
        layouts = ", ".join(map(_layout, offer.fits)) or "none"
        table.add_row(*map(printable, (each.profile.name, _weights(each), layouts)))
    return table


def _weights(each: ModelListing) -> str:
    profile = each.profile
    block = f" {profile.block[0]}x{profile.block[1]}" if any(profile.block) else ""
    size = checkpoint_bytes(profile)
    shown = f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    return f"{shown} {profile.quantisation}{block}"


def _layout(fit: LayoutFit) -> str:
    groups = f"{fit.degrees.attention}x" if fit.degrees.attention > 1 else ""
    tokens = "" if fit.kv_tokens is None else f" {groups}{fit.kv_tokens // 1000}k"
    speed = ""
    if fit.speeds is not None:
        least, most = min(fit.speeds.tokens_per_s), max(fit.speeds.tokens_per_s)
        speed = f" {fit.speeds.tokens_per_s[least]:.0f}-{fit.speeds.tokens_per_s[most]:.0f}/s"
    return f"{fit.degrees}{'*' if fit.default else ''}{tokens}{' measured' if fit.measured else ''}{speed}"


def _refusals(mine: Sequence[tuple[ModelListing, ModelOffer]]) -> dict[str, tuple[list[str], ModelOffer]]:
    """Reasons against the usual layout, each once, with the models that it concerns."""
    found: dict[str, tuple[list[str], ModelOffer]] = {}
    for each, offer in mine:
        if offer.refusal:
            what = offer.refusal.replace(f" for {each.profile.name}", "").removeprefix(f"{each.profile.name} ")
            found.setdefault(what, ([], offer))[0].append(each.profile.name)
    return found


def _add(args: argparse.Namespace, screen: Screen) -> int:
    if args.inventory or os.environ.get("L40S_INVENTORY"):
        resources.remember(choose_inventory(args.inventory).path)
    place = args.directory
    if ":" not in place.partition("/")[0]:
        place = str(Path(place).expanduser().absolute())
    judgement = inspect_at(args, place, screen)
    path, unknown = add_model(judgement, place, name=args.name, file=args.out, over=args.force)
    if screen.as_json:
        screen.json({"file": str(path), "unknown": unknown})
        return 0
    screen.out.print(printable(f"{path} written. Fill in what is marked UNKNOWN (not in the checkpoint):"))
    for key, words in unknown.items():
        screen.out.print(printable(f"  {key}: {words}"))
    screen.out.print(printable(f"l40s-deploy plan --model {path.stem if args.out is None else path}"))
    return 0
