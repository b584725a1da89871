"""`checkpoint`: re-block a directory here, prove the result, look at one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checkpoint.on_node.inspect import look
from orchestrator.checkpoint.on_node.prove import prove
from orchestrator.checkpoint.on_node.reblock import plan, reblock, survey
from orchestrator.checkpoint.on_node.target import TargetState, standing
from orchestrator.model.errors import DeployError, InputError, LockHeld, VerificationDiffers
from orchestrator.node.failure import Failure
from orchestrator.node.os_failure import os_failures
from orchestrator.planning.judgement import Judgement, judge
from orchestrator.protocol.jobs import Progress, Proof, WouldReblock

__all__ = ["Progress", "Proof", "ReblockResult", "Report", "inspect_here", "reblock_here", "survey_here"]

Report = Callable[[str, Progress], None]
"""Told what is being done ('re-blocking', 'proving') and how far it is."""

_ERRORS: dict[str, type[DeployError]] = {"differs": VerificationDiffers, "lock-held": LockHeld}
"""Kinds of failure that are no matter of input."""


@dataclass(frozen=True, slots=True)
class ReblockResult:
    """What became of a re-blocking.

    written: None where the target was there already and was only compared; proof: None where none was asked for
    """

    written: Progress | None
    proof: Proof | None
    old_block: tuple[int, int]
    new_block: tuple[int, int]


def reblock_here(
    source: Path, target: Path, *, block: int, with_proof: bool, jobs: int, report: Report
) -> ReblockResult:
    """Re-block a local checkpoint. With a proof asked for, a finished target is compared and not touched.

    Raises InputError, LockHeld, and VerificationDiffers where the proof fails.
    """
    with _told(target):
        job = plan(source, block)
        written = None
        if not (with_proof and standing(target) is TargetState.FOREIGN):
            written = reblock(job, target, jobs=jobs, report=lambda now: report("re-blocking", now))
        proof = prove(job, target, jobs=jobs, report=lambda now: report("proving", now)) if with_proof else None
    return ReblockResult(written, proof, job.old, job.new)


def survey_here(source: Path, target: Path, *, block: int) -> WouldReblock:
    """What `reblock_here` would write; writes nothing. Raises as it would at its beginning."""
    with _told(target):
        return survey(plan(source, block), target)


def inspect_here(directory: Path) -> Judgement:
    """Look at a local checkpoint directory. Raises InputError where there is none."""
    with _told(directory):
        return judge(look(directory))


@contextmanager
def _told(place: Path) -> Iterator[None]:
    try:
        with os_failures(str(place)):
            yield
    except Failure as failure:
        kind = _ERRORS.get(failure.kind, InputError)
        raise kind(failure.what, where=failure.where, fix=failure.fix) from None
