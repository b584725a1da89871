"""Numbers and things in the words that every screen and message uses."""

from __future__ import annotations


def counted(number: int, what: str, plural: str = "s") -> str:
    """'1 GPU', '2 GPUs'. plural: what makes `what` more than one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"
