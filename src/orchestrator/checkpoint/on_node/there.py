"""Verb `reblock`: re-block a checkpoint on this node; the bytes never leave it.

Lines: ReblockLine, now and then how far it is, at the end the outcome; of a dry run what would be done. When nobody
reads any more it stops where it is; the same request goes on from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.prove import prove
from orchestrator.checkpoint.on_node.reblock import Job, plan, reblock, survey
from orchestrator.checkpoint.on_node.target import TargetState, standing
from orchestrator.node.failure import os_failures
from orchestrator.node.requests import request_of
from orchestrator.node.telling import TICK_S, reader_is_gone, tell
from orchestrator.protocol.jobs import Progress, Reblocked, ReblockLine, ReblockRequest


def stream(request: dict[str, Any]) -> None:
    """Re-block, or say what that would do."""
    asked = request_of(ReblockRequest, request)
    with os_failures(asked.target):
        _reblock(asked, Path(asked.target))


def _reblock(asked: ReblockRequest, target: Path) -> None:
    job = plan(Path(asked.source), asked.block)
    if asked.dry_run:
        tell(ReblockLine(would=survey(job, target)).as_json())
        return
    outcome = reblocked(job, target, with_proof=asked.prove, jobs=asked.jobs, report=_Reporter())
    tell(ReblockLine(outcome=outcome).as_json())


def reblocked(
    job: Job, target: Path, *, with_proof: bool, jobs: int | None, report: Callable[[str, Progress], None]
) -> Reblocked:
    """Re-block, and compare where a proof is asked for. A finished target is then only compared.

    report: told what is being done ('re-blocking', 'proving') and how far it is
    """
    jobs = jobs or min(8, os.cpu_count() or 1)
    written = proof = None
    if not (with_proof and standing(target) is TargetState.FOREIGN):
        written = reblock(job, target, jobs=jobs, report=partial(report, "re-blocking"))
    if with_proof:
        proof = prove(job, target, jobs=jobs, report=partial(report, "proving"))
    return Reblocked(written=written, proof=proof, old_block=job.old, new_block=job.new)


class _Reporter:
    """Reports progress now and then; raises BrokenPipeError if the reader is gone, which stops the work."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def __call__(self, doing: str, progress: Progress) -> None:
        if reader_is_gone(0):
            raise BrokenPipeError
        now = time.monotonic()
        if now - self._told.get(doing, 0.0) >= TICK_S:
            self._told[doing] = now
            tell(ReblockLine(doing=doing, progress=progress).as_json())
