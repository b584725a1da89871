"""Numbers and things in the words that every screen and message uses."""

from __future__ import annotations

import re
from textwrap import shorten

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):[ \t]*(?:\n[ \t]+[^\n]*|\n(?=\n))*\n?")
"""Its frames; the exception in the last line stays."""


def counted(number: int, what: str, plural: str = "s") -> str:
    """'1 GPU', '2 GPUs'. plural: what makes `what` more than one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"


def one_line(text: str, most: int) -> str:
    """A text without tracebacks as one line of whole words, of at most so many characters."""
    return shorten(_TRACEBACK.sub("", text), most, placeholder=" ...")
