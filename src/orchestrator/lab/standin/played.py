"""Errors of the real engine, shown with the class names and words that it shows them with."""

from __future__ import annotations

import traceback


class Played(Exception):
    """An error that the real engine would raise here; `shown` is the class as its traceback names it."""

    def __init__(self, shown: str, text: str) -> None:
        super().__init__(text)
        self.shown = shown


def trace(error: BaseException) -> str:
    """The traceback as the engine logs it: frames, then class and words."""
    head = "".join(["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)])
    shown = error.shown if isinstance(error, Played) else type(error).__name__
    return f"{head}{shown}: {error}\n"
