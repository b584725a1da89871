"""Sizes, rates and durations as `checkpoint` shows them."""

from __future__ import annotations

import argparse
import time
from collections import deque

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_WINDOW_S = 15.0


def size(count: int) -> str:
    """Bytes in the unit that suits."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def duration(seconds: float) -> str:
    """Minutes and seconds, hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def rate(text: str) -> int:
    """Bytes a second from 500K, 100M or 1.5G, for argparse."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in ("K", "M", "G") else (text, "")
    try:
        found = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        found = 0
    if found < 1024:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted bytes per second, at least 1K: 500K, 100M, 1.5G")
    return found


def port(text: str) -> int:
    """A TCP port, 0 for any free one, for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a port: 1 to 65535, or 0 for any free one")
    return int(text)


class TransferRate:
    """Bytes a second over the last quarter of a minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, done: int) -> float:
        """Record how much is done; returns the rate, 0 if unknown."""
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        return max(0.0, (done - before) / (now - began)) if now > began else 0.0
