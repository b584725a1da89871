"""Verb `weights-ahead`: the weight files of the next start are read while the engine before it still runs.

Lines say how far it is twice a second. It ends when all is read, when the memory is needed for other things, or when
nobody reads its lines any more; the process that reads is the agent's own (node/cache/ahead.py).
"""

from __future__ import annotations

from typing import Any

from orchestrator.node.cache.ahead import ReadAhead
from orchestrator.node.requests import request_of
from orchestrator.node.telling import TICK_S, reader_is_gone, tell
from orchestrator.protocol.jobs import WeightsAheadLine, WeightsAheadRequest


def stream(request: dict[str, Any]) -> None:
    """Read, for as long as somebody wants it."""
    asked = request_of(WeightsAheadRequest, request)
    ahead = ReadAhead(asked.order, asked.ranks)
    ahead.start()
    try:
        while ahead.cache is not None:
            tell(WeightsAheadLine(cache=ahead.cache).as_json())
            if ahead.cache.state != "reading" or reader_is_gone(TICK_S):
                return
            ahead.take()
    finally:
        ahead.stop("nobody waits for it any more")
