"""Role `light`: verbs that are asked for again and again, one request a line, answered in the order in which they come.

`{"verb": ..., "request": {...}}` in, the verb's answer out. It ends with its input, or when nobody has asked for long.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator, Sequence

from orchestrator.node import dispatch
from orchestrator.node.failure import Failure

IDLE_S = 60.0
"""Whoever still watches asks every second; a connection that was cut may stay open for hours."""
VERBS = ("report", "lock", "go", "figures")


def run(_arguments: Sequence[str]) -> int:
    """Answer until the reader is gone."""
    for line in _lines():
        dispatch.say(_answer(line))
    return 0


def _answer(line: bytes) -> dict[str, object]:
    try:
        asked = json.loads(line)
        verb, request = str(asked["verb"]), dict(asked["request"])
    except (ValueError, KeyError, TypeError) as wrong:
        return dispatch.refusal(Failure("bad-request", f"not a request: {wrong}", "stdin"))
    if verb not in VERBS:
        return dispatch.refusal(Failure("unknown-verb", f"{verb!r} is not one of {', '.join(VERBS)}", "role light"))
    return dispatch.answer_of(verb, request)


def _lines() -> Iterator[bytes]:
    rest = b""
    while select.select([0], [], [], IDLE_S)[0]:
        more = os.read(0, 1 << 16)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from lines
