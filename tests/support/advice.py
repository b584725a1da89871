"""Commands that messages of the program advise, and whether our own parser takes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

from tests.support.command_lines import commands_in, parsed

from orchestrator.protocol.errors import InputError

_COMMAND = re.compile(r"(?<![\w/.-])l40s-deploy (?=[a-z])")
_END = re.compile(
    r"[`;)\n]|, |: |\. |\.$| \(|\" |$"
    r"| (?:and|or|then|for|to|on|that|which|shows?|says?|lists?|names|explains|has) "
)
"""After a command that stands in a sentence."""
_PROSE = (
    "on", "that", "which", "has", "is", "does", "staged", "started", "of", "or", "agent", "help", "tuned", "stand-in",
)  # fmt: skip
"""Words after the program's name in a sentence about it."""
NAMES = ("node", "gang", "to", "without")
"""Options of which each value is one name; several are repeated options."""


def commands(text: str) -> Iterator[str]:
    """The commands that a message advises, without the program's name."""
    for found in _COMMAND.finditer(text):
        rest = text[found.end() :]
        closing = re.match(r"[^`]*`", rest) if text[: found.start()].endswith("`") else None
        command = closing.group()[:-1] if closing else rest[: _END.search(rest).start()]  # type: ignore[union-attr]
        if command.split()[0] not in _PROSE:
            yield command.strip()


@cache
def refused(command: str) -> str:
    """Why our own parser, or who looks up its names, refuses a command; '' where it is taken."""
    for words in commands_in(f"l40s-deploy {command}"):
        try:
            args = parsed(words)
        except SystemExit as ended:
            return "" if ended.code == 0 else f"exit code {ended.code}"
        except (InputError, AssertionError) as refusal:
            return str(refusal)
        joined = [value for name in NAMES for value in _several(getattr(args, name, None)) if "," in value]
        if joined:
            return f"one name has a comma: {shlex.join(joined)}"
    return ""


def _several(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list | tuple) else [str(value or "")]
