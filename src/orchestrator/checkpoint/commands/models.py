"""`l40s-deploy models`: every model that there is a profile for, and the layouts that fit this cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.checkpoint.commands.checkpoint import checked_at
from orchestrator.cli.options import add_examples, add_gang_option, add_usual, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.loading import resources
from orchestrator.loading.which import choose_inventory
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.per_node import collected
from orchestrator.planning.layout import short
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.planning.offers import LayoutFit, ModelOffer
from orchestrator.planning.roofline import BATCHES
from orchestrator.planning.steps.models import (
    ASSUMED,
    ModelListing,
    add_model,
    here_words,
    list_models,
    models_json,
    step_words,
)

if TYPE_CHECKING:
    from rich.table import Table


class _NameOrAction(dict[str, argparse.ArgumentParser]):
    """Parsers of actions; any other word is the name of a model, and followed by the verb's own options."""

    named: argparse.ArgumentParser

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: str) -> argparse.ArgumentParser:
        return self.named


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy models -i inventory/reference.yml",
        "l40s-deploy models GLM-4.6-FP8     # all its layouts",
        "l40s-deploy models add /workspace/GLM-4.5-Air-FP8",
    )
    add_gang_option(parser)
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: l40s_stack)")
    actions = parser.add_subparsers(dest="action", metavar="NAME | add", help="a model's layouts; or a new profile")
    adding = actions.add_parser("add", help="create a profile from a checkpoint's config.json")
    add_examples(
        adding,
        "l40s-deploy models add /workspace/GLM-4.5-Air-FP8",
        "l40s-deploy models add node0:/workspace/GLM-4.5-Air-FP8",
    )
    adding.add_argument("directory", metavar="DIR", help="checkpoint directory on this machine, or NODE:/path")
    adding.add_argument("-i", "--inventory", default=argparse.SUPPRESS, metavar="FILE", help="for NODE:/path")
    adding.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="NAME.yml, named like the profile (default: models/ beside the inventory, the directory's name)",
    )
    adding.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    names = _NameOrAction(actions.choices or {})
    names.named = type(adding)(prog=parser.prog)
    for action in parser._actions:
        if action.option_strings not in ([], ["-h", "--help"]):
            again = copy(action)
            again.default = argparse.SUPPRESS
            names.named._add_action(again)
    actions.choices = actions._name_parser_map = names


def run(args: argparse.Namespace, screen: Screen) -> int:
    """List, show one, or add."""
    if args.action == "add":
        return _add(args, screen)
    gangs = chosen_gangs(open_inventory(args, screen), tuple(args.gang))
    listed = list_models(gangs, args.stack, args.action)
    if args.json:
        screen.json(models_json(listed))
        return 0
    for names in _alike(listed):
        (_models if args.action is None else _layouts)(names, listed, screen)
    screen.out.print(f"GPUs: {ASSUMED}")
    more = (
        "--layout: where the default does not work, name it; more: others that fit, see `models` with its name"
        if args.action is None
        else "what is not measured is calculated"
    )
    screen.out.print(f"*: the default of `plan` and `up`; {more}")
    for basis, those in _bases(listed).items():
        of = f" of {', '.join(those)}" if len(gangs) > 1 else ""
        screen.show(f"tokens/s{of}: decoded for 1 and for 128 requests, {basis}.")
    return 0


def _alike(listed: Sequence[ModelListing]) -> list[list[str]]:
    """Gangs to which the same is said, together."""
    groups = collected(
        (repr([replace(each.offers[place], gang="") for each in listed]), offer.gang)
        for place, offer in enumerate(listed[0].offers)
    )
    return list(groups.values())


def _bases(listed: Sequence[ModelListing]) -> dict[str, list[str]]:
    """What the speeds of each gang's first layout rest on, with the gangs of which it is said."""
    first: dict[str, str] = {}
    for of in (offer for each in listed for offer in each.offers):
        for fit in of.fits:
            if fit.speeds is not None:
                first.setdefault(of.gang, fit.speeds.basis)
    return collected((basis, gang) for gang, basis in first.items())


def _offers(gangs: Sequence[str], listed: Sequence[ModelListing], screen: Screen) -> list[ModelOffer]:
    """Of each model to the first of these gangs, which have their headline."""
    mine = [next(offer for offer in each.offers if offer.gang == gangs[0]) for each in listed]
    stacks = ", ".join(sorted({offer.stack for offer in mine}))
    those = f"gang {gangs[0]}" if len(gangs) == 1 else f"gangs {', '.join(gangs)}"
    screen.show(f"{those}: {mine[0].nodes} x {mine[0].gpus_per_node} GPUs, by {stacks}")
    return mine


def _weights_cell(size: int) -> str:
    return f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _models(gangs: Sequence[str], listed: Sequence[ModelListing], screen: Screen) -> None:
    """A line for each model."""
    rows = []
    for each, offer in zip(listed, _offers(gangs, listed, screen), strict=True):
        first = next((fit for fit in offer.fits if fit.default), offer.fits[0] if offer.fits else None)
        more = f"+{len(offer.fits) - 1}" if len(offer.fits) > 1 else ""
        rows.append((each.profile.name, _weights_cell(checkpoint_bytes(each.profile)), *_first_cells(first), more))
    screen.out.print(_table(("model", "weights", "layout", "KV", "tokens/s", "more"), rows))
    unfit = (each for each in listed if all(reason for _, reason in each.stacks))
    if refused := collected((each.stacks[0][1], each.profile.name) for each in unfit):
        screen.out.print("no engine here can serve:")
    for reason, names in refused.items():
        screen.show(f"  {', '.join(names)}: {reason}")


def _first_cells(fit: LayoutFit | None) -> tuple[str, str, str]:
    """Of the layout that a model is listed with. One that has to be asked for is shown as the option that does."""
    if fit is None:
        return "none", "", ""
    name, tokens, speed = _cells(fit)
    return name if fit.default else f"--layout {name}", tokens, speed


def _layouts(gangs: Sequence[str], listed: Sequence[ModelListing], screen: Screen) -> None:
    """A line for each layout of a model, and why its usual one is refused."""
    (offer,) = _offers(gangs, listed, screen)
    profile = listed[0].profile
    block = f" {profile.block[0]}x{profile.block[1]}" if any(profile.block) else ""
    screen.show(f"{profile.name}: {checkpoint_bytes(profile) / 1e9:.1f} GB {profile.quantisation}{block}")
    if rows := [(*_cells(fit), step_words(fit), _measured(fit), fit.name) for fit in offer.fits]:
        screen.out.print(_table(("--layout", "KV tokens", "tokens/s", "ms a step", "", ""), rows))
        screen.out.print(f"ms a step: weights + all-reduces + the rest, for {BATCHES[-1]} requests")
    if offer.refusal:
        screen.show(f"{offer.refusal}\n  {offer.instead}")
    for name, reason in listed[0].stacks:
        screen.show(f"{name}: {f'no, {reason}' if reason else 'can serve it'}")


def _measured(fit: LayoutFit) -> str:
    """What was measured on these nodes, else that somebody has measured the layout."""
    return here_words(fit) or ("measured" if fit.measured else "")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _cells(fit: LayoutFit) -> tuple[str, str, str]:
    groups = f"{fit.layout.attention_data_parallel}x" if fit.layout.attention_data_parallel > 1 else ""
    tokens = "" if fit.kv_tokens is None else f"{groups}{fit.kv_tokens // 1000}k"
    speeds = fit.speeds.tokens_per_s if fit.speeds is not None else {}
    speed = f"{speeds[min(speeds)]:.0f}-{speeds[max(speeds)]:.0f}" if speeds else ""
    return f"{short(fit.layout)}{'*' if fit.default else ''}", tokens, speed


def _add(args: argparse.Namespace, screen: Screen) -> int:
    if args.inventory or os.environ.get("L40S_INVENTORY"):
        resources.remember(choose_inventory(args.inventory).path)
    place = args.directory
    if ":" not in place.partition("/")[0]:
        place = str(Path(place).expanduser().absolute())
    judgement = checked_at(args, place, screen)
    path, unknown = add_model(judgement, place, file=args.out)
    if screen.as_json:
        screen.json({"file": str(path), "unknown": unknown})
        return 0
    screen.show(f"{path} written. Fill in what is marked UNKNOWN (not in the checkpoint):")
    for key, words in unknown.items():
        screen.show(f"  {key}: {words}")
    screen.show(f"l40s-deploy plan --model {path.stem if args.out is None else path}")
    return 0
