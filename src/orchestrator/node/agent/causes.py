"""Words for why a node's part of a gang ended, as the report's `cause` has them."""

from __future__ import annotations

import signal
from typing import Any

from orchestrator.node.engine.deaths import Death
from orchestrator.node.engine.tree import RankDied
from orchestrator.node.engine.watch import SUSPECT_FOR_S, LogWatch, Suspicion

LINES_SHOWN = 3
"""Of a log that does not explain the end: just enough to see where it was."""

Cause = dict[str, Any]


def make(node: str, text: str, at: float, **more: Any) -> Cause:
    """A cause with every key that the report's schema knows."""
    return {
        "node": node,
        "tp_rank": None,
        "signal": None,
        "exit_code": None,
        "signature": "",
        "text": text,
        "fix": "",
        "lines": [],
        "at": at,
        "secondary": False,
        **more,
    }


def rank_died(node: str, died: RankDied, watch: LogWatch, now: float) -> Cause:
    """A rank's process ended: the log's reason where it gives one, else how it died."""
    rank, death = died.rank, died.death
    gpu = f" on GPU {rank.gpu}" if rank.gpu >= 0 else ""
    was = "was " if death.signal is not None else ""
    plain = f"TP{rank.tp_rank}{gpu} (pid {rank.pid}) {was}{death.words()}"
    return _with_suspicion(node, plain, death, rank.tp_rank, watch, now)


def engine_ended(node: str, death: Death, watch: LogWatch, now: float) -> Cause:
    """The engine's parent process ended by itself."""
    was = "was " if death.signal is not None else ""
    return _with_suspicion(node, f"the engine's parent process {was}{death.words()}", death, None, watch, now)


def followed(node: str, first: Cause, now: float) -> Cause:
    """This node was ended because another one had failed."""
    return make(node, f"ended because {first.get('node')} failed: {first.get('text')}", now, secondary=True)


def told(failure: dict[str, Any], now: float) -> Cause:
    """A failure that the controller saw and no agent could: the `because` of an order to stop."""
    node, text, fix = (str(failure.get(name) or "") for name in ("node", "text", "fix"))
    return make(node, text, now, fix=fix)


def hung(node: str, detail: str, now: float) -> Cause:
    """The engine lives and does nothing any more."""
    fix = "`l40s-deploy logs`; a rank that waits in a collective for ever is ended by `l40s-deploy restart`, or a guard"
    return make(node, f"the engine is hung: {detail}", now, fix=fix)


def _with_suspicion(node: str, plain: str, death: Death, tp_rank: int | None, watch: LogWatch, now: float) -> Cause:
    suspicion = watch.suspect(now - SUSPECT_FOR_S)
    how = {"signal": death.signal, "exit_code": death.exit_code}
    if suspicion is None:
        lines = list(watch.last_lines(tp_rank))[-LINES_SHOWN:]
        return make(node, plain, now, tp_rank=tp_rank, fix=_fix(death), lines=lines, **how)
    rank = suspicion.tp_rank if suspicion.tp_rank is not None else tp_rank
    if suspicion.tp_rank not in (None, tp_rank):
        how = {"signal": None, "exit_code": None}  # how the other one died is not this one's to tell
    return make(node, f"{suspicion.text} ({plain})", now, tp_rank=rank, **_signature(suspicion), **how)


def _signature(suspicion: Suspicion) -> dict[str, Any]:
    return {
        "signature": suspicion.id,
        "fix": suspicion.fix,
        "lines": list(suspicion.lines),
        "secondary": suspicion.secondary,
    }


def _fix(death: Death) -> str:
    if death.signal == signal.SIGKILL:
        return "somebody killed it, or the kernel was out of memory: look at `journalctl -k` on that node"
    if death.signal in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        return "it crashed in native code: the lines before the end and `journalctl -k` (NVRM: Xid) tell more"
    return "read the engine's log: l40s-deploy logs"
