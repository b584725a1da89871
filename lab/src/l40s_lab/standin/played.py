"""Errors of the real engine, with its class names and messages."""

from __future__ import annotations

import traceback


class Played(Exception):
    """An error that the real engine would raise here; `shown` is the class in its traceback."""

    def __init__(self, shown: str, text: str) -> None:
        super().__init__(text)
        self.shown = shown


def trace(error: BaseException) -> str:
    """The traceback in the engine's log: frames, then class and message."""
    head = "".join(["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)])
    shown = error.shown if isinstance(error, Played) else type(error).__name__
    return f"{head}{shown}: {error}\n"
