"""Verb `excerpt`: the engine's log around one of its lines, rotated part included."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.node import files
from orchestrator.node.engine.logfile import lines_at
from orchestrator.node.engine.watch import shown
from orchestrator.node.files import ENGINE_LOG
from orchestrator.node.requests import request_of
from orchestrator.protocol.verbs import ExcerptAnswer, ExcerptRequest


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"found", "lines", "marked"}: `before` lines, the line itself, and `after` lines.

    lines:  texts of the log in their order; the place of the last of them is looked for, after all the others
    marked: the place of that line in the answer, -1 where it is not in the log: then these are the last lines
    """
    asked = request_of(ExcerptRequest, request)
    folder = files.wanted_run(asked)
    with files.state_failures(folder):
        return cut(_lines(folder), asked.lines, max(0, asked.before), max(0, asked.after)).as_json()


def cut(lines: Iterator[str], wanted: Sequence[str], before: int, after: int) -> ExcerptAnswer:
    """The excerpt out of a log's lines."""
    kept: deque[str] = deque(maxlen=max(before + 1, 1))
    seen = 0
    for line in lines:
        kept.append(line)
        seen += seen < len(wanted) and wanted[seen] == shown(line)
        if wanted and seen == len(wanted):
            tail = [line for line, _ in zip(lines, range(after), strict=False)]
            return ExcerptAnswer(found=True, lines=(*kept, *tail), marked=len(kept) - 1)
    return ExcerptAnswer(lines=tuple(kept)[-max(before, 1) :])


def _lines(folder: str) -> Iterator[str]:
    for name in (f"{ENGINE_LOG}.1", ENGINE_LOG):
        yield from lines_at(f"{folder}/{name}")
