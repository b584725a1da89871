"""The questions of the two verbs that ask: `init`, and `certify` before it kills a rank."""

from __future__ import annotations

import sys

from orchestrator.cli.screen import Screen
from orchestrator.protocol.errors import InputError


class Questions:
    """asks: whether a user can be asked. where: the verb that asks"""

    def __init__(self, screen: Screen, where: str) -> None:
        self._screen, self._where = screen, where
        self.asks = sys.stdin.isatty() and sys.stderr.isatty()

    def text(self, question: str, option: str, default: str | None = None) -> str:
        """A line; the default for an empty one. Raises InputError that names the option if no user can be asked."""
        hint = f" [{default}]" if default else ""
        while self.asks:
            self._screen.err.print(f"{question}{hint}: ", end="")
            line = sys.stdin.readline()
            if not line:
                break
            if line.strip() or default is not None:
                return line.strip() or default or ""
        raise InputError(
            f"no answer to: {question}",
            where=self._where,
            fix=f"say it in the command of `{self._where}`: {option}",
        )

    def agreed(self, question: str, option: str) -> bool:
        """Yes, spelt out: nothing is agreed to by mistake."""
        return self.text(f"{question} (yes or no)", option, "no").lower() in ("yes", "y")
