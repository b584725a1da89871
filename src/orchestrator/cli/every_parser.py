"""The complete command line: what completion scripts and manual pages are made from."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator


def every_parser() -> argparse.ArgumentParser:
    """All verbs with all their options. A command itself builds only the verb that was typed."""
    parser: argparse.ArgumentParser = importlib.import_module("orchestrator.cli.main").parser_of(None)[0]
    return parser


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers below this one, by name; empty where it has none."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: one for action in below for name, one in action.choices.items()}


def every_action(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every option and argument of a parser and of those below it."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            yield action
    for one in verbs_of(parser).values():
        yield from every_action(one)
