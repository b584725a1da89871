"""SGLang's log lines. Each is written with one system call, so that processes sharing a file never mix lines."""

from __future__ import annotations

import contextlib
import os
import time


class Log:
    """Lines as `[2025-06-01 12:00:00 TP3] text` on standard error."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def line(self, text: str) -> None:
        raw(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._prefix}] {text}\n")

    def uvicorn(self, text: str) -> None:
        """A line of the HTTP server."""
        self.line(f"INFO:     {text}")


def raw(text: str, descriptor: int = 2) -> None:
    """Write a line without a time stamp; a closed log never ends the engine."""
    with contextlib.suppress(OSError):
        os.write(descriptor, text.encode("utf-8", "replace"))


def clock(seconds: float) -> str:
    """tqdm's mm:ss."""
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def shard_bar(title: str, done: int, of: int, elapsed: float) -> str:
    """Progress line of the weight loader (srt/model_loader/weight_utils.py, BAR_FORMAT), written over the previous
    one."""
    rate = done / elapsed if done and elapsed else 0.0
    left, speed = (clock((of - done) / rate), f"{rate:.2f}it/s") if rate else ("?", "?it/s")
    end = "\n" if done == of else ""
    return f"\r{title}: {100 * done // of:3d}% Completed | {done}/{of} [{clock(elapsed)}<{left}, {speed}]{end}"
