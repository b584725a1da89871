"""The operator's own defaults (loading/config.py) as words of the command line, unless others were typed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from orchestrator.model.errors import InputError


def added(
    words: Sequence[str], parser: argparse.ArgumentParser, options: Mapping[str, Any], file: Path | None
) -> list[str]:
    """Words of a verb, with those of the file's options that were not typed added after the verb. GANG of a verb that
    takes it as a position gets another default.

    parser: of that verb. An option that excludes a typed one is left out. Raises InputError for an option that the
    verb does not have, or a value of another kind.
    """
    known = parser._option_string_actions
    positions = {action.dest: action for action in parser._actions if action.metavar == "GANG" and action.nargs == "*"}
    typed = {id(action) for word in words for action in _meant(word, known)}
    for group in parser._mutually_exclusive_groups:
        members = {id(action) for action in group._group_actions}
        typed |= members if members & typed else set()
    more: list[str] = []
    for name, value in options.items():
        if name in positions:
            positions[name].default = _values(value)
            continue
        action = known.get(f"--{name}")
        if action is None:
            raise _unknown(name, parser.prog, [*known, *(f"--{position}" for position in positions)], file)
        if id(action) not in typed:
            more += _words(action, f"--{name}", value)
    return [*words[:1], *more, *words[1:]]


def _unknown(name: str, prog: str, known: Sequence[str], file: Path | None) -> InputError:
    near = get_close_matches(f"--{name}", known, n=1)
    return InputError(
        f"{prog} has no option --{name}",
        where=f"{file}: options.{prog.rpartition(' ')[2]}.{name}",
        fix=f"did you mean {near[0].removeprefix('--')}?" if near else f"run `{prog} --help`",
    )


def _values(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _meant(word: str, known: Mapping[str, argparse.Action]) -> Iterator[argparse.Action]:
    """What a word may mean: argparse accepts the beginning of a long option as the option."""
    name = word.partition("=")[0]
    if name.startswith("--"):
        yield from (action for option, action in known.items() if option.startswith(name) and name != "--")
    elif name[:2] in known:
        yield known[name[:2]]


def _words(action: argparse.Action, option: str, value: Any) -> list[str]:
    if action.nargs == 0:
        return [option] if value is True else []
    values = _values(value)
    if isinstance(action, argparse._AppendAction):
        return [word for one in values for word in (f"{option}={one}",)]
    return [f"{option}={values[0]}"] if len(values) == 1 else [option, *values]
