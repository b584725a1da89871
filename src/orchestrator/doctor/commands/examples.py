"""`--example`: recorded clusters that ship with this program, in place of an inventory's nodes."""

from __future__ import annotations

import argparse

from orchestrator.cli.screen import Screen
from orchestrator.loading.resources import data_dir
from orchestrator.model.chosen import no_such

EXAMPLES = {
    "articles": "the articles' cluster as it was: four nodes, three faults, what each costs and how to put it right",
    "right": "the same cluster, put right",
}
"""Folders of examples/, and what is in them."""


def add_example(parser: argparse.ArgumentParser) -> None:
    """--example NAME; without NAME it lists them."""
    names = " or ".join(EXAMPLES)
    parser.add_argument(
        "--example",
        nargs="?",
        const="",
        metavar="NAME",
        help=f"read a cluster that ships instead: {names}; without NAME: list them",
    )


def show_examples(verb: str, screen: Screen) -> None:
    """Every example as a command that reads it; verb: with its options."""
    if screen.as_json:
        screen.json({"examples": [{"name": name, "text": text} for name, text in EXAMPLES.items()]})
        return
    for name, text in EXAMPLES.items():
        screen.show(f"l40s-deploy {verb} --example {name}", f"  {text}")


def example_folder(name: str) -> str:
    """Where the snapshots of an example are. Raises InputError for a name that there is not."""
    if name not in EXAMPLES:
        raise no_such("example", name, EXAMPLES, where="--example")
    return str(data_dir("examples") / name)
