"""Commands of this program in lines of shell, as help, pages and messages show them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator

from orchestrator.cli.main import parser_of

_ENDS = {"|", "||", "&", "&&", ";", ")", ">", ">>", "<"}
"""After these a command's own words are over."""


def whole_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines with those that a backslash continues."""
    begun = ""
    for line in lines:
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun.removesuffix("\\")
            continue
        yield begun
        begun = ""


def commands_in(line: str) -> Iterator[list[str]]:
    """What stands after each `l40s-deploy` of a line, as a shell splits it; remarks are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    words: list[str] | None = None
    for word in lexer:
        if word == "l40s-deploy":
            words = []
        elif words is not None and word in _ENDS:
            yield words
            words = None
        elif words is not None:
            words.append(word)
    if words is not None:
        yield words


def parsed(words: list[str]) -> argparse.Namespace:
    """What our own parser makes of a command.

    Raises AssertionError for a word that no parser knows, SystemExit (--help) and InputError as it does.
    """
    parser, _ = parser_of(next((word for word in words if not word.startswith("-")), None))
    args, unknown = parser.parse_known_args(words)
    assert unknown[:1] in ([], ["--"]), f"l40s-deploy {shlex.join(words)}: {unknown}"
    return args
