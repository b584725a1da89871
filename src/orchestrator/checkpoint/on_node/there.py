"""Verb `reblock`: re-block a checkpoint on this node; the bytes never leave it.

Lines: ReblockLine, now and then how far it is, at the end the outcome; of a dry run what would be done. When nobody
reads any more it stops where it is; the same request goes on from there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.prove import prove
from orchestrator.checkpoint.on_node.reblock import plan, reblock, survey
from orchestrator.checkpoint.on_node.target import TargetState, standing
from orchestrator.node.os_failure import os_failures
from orchestrator.node.requests import request_of
from orchestrator.node.telling import TICK_S, reader_is_gone, tell
from orchestrator.protocol.jobs import Progress, Reblocked, ReblockLine, ReblockRequest


def stream(request: dict[str, Any]) -> None:
    """Re-block, and compare where a proof is asked for. A finished target is only compared."""
    asked = request_of(ReblockRequest, request)
    with os_failures(asked.target):
        _reblock(asked, Path(asked.target))


def _reblock(asked: ReblockRequest, target: Path) -> None:
    jobs = asked.jobs or min(8, os.cpu_count() or 1)
    job = plan(Path(asked.source), asked.block)
    if asked.dry_run:
        tell(ReblockLine(would=survey(job, target)).as_json())
        return
    written = None
    if not (asked.prove and standing(target) is TargetState.FOREIGN):
        written = reblock(job, target, jobs=jobs, report=_Reporter("re-blocking"))
    proof = prove(job, target, jobs=jobs, report=_Reporter("proving")) if asked.prove else None
    outcome = Reblocked(written=written, proof=proof, old_block=tuple(job.old), new_block=tuple(job.new))
    tell(ReblockLine(outcome=outcome).as_json())


class _Reporter:
    """Reports progress now and then; raises BrokenPipeError if the reader is gone, which stops the work."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._told = 0.0

    def __call__(self, progress: Progress) -> None:
        if reader_is_gone(0):
            raise BrokenPipeError
        now = time.monotonic()
        if now - self._told >= TICK_S:
            self._told = now
            tell(ReblockLine(doing=self._doing, progress=progress).as_json())
