"""The next start's weight files are read into the nodes' page caches while the engine before it drains.

It costs the running engine nothing: the nodes read what their free memory holds, at the lowest priority (docs/agent.md,
"States"). Whatever goes wrong with it, the start reads for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from orchestrator.protocol.page_cache import WeightsAheadLine, WeightsAheadRequest
from orchestrator.remote import node_app
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

Reads = Mapping[str, WeightsAheadRequest]
"""By node name."""


@contextmanager
def weights_ahead(fleet: Fleet, reads: Iterable[Reads]) -> Iterator[None]:
    """Have the nodes read for as long as the block lasts, however it ends; at most a line's time longer."""
    wanted = {name: request for one in reads for name, request in one.items()}
    over = threading.Event()

    if wanted:
        ahead(lambda: fleet.on_every(lambda session: _follow(session, wanted[session.spec.name], over), only=wanted))
    try:
        yield
    finally:
        over.set()


def _follow(session: Session, request: WeightsAheadRequest, over: threading.Event) -> None:
    told = node_app.messages(session, "weights-ahead", request, WeightsAheadLine)
    with closing(told):
        for _ in told:
            if over.is_set():
                return
