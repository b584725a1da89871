"""Re-block, prove and inspect a checkpoint, on this machine or on the node that has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.checkpoint.on_node.directory import look
from orchestrator.checkpoint.on_node.prove import reblocked
from orchestrator.checkpoint.on_node.reblock import plan, survey
from orchestrator.model.deadlines import INSPECT_S
from orchestrator.model.errors import DeployError, InputError, LockHeld, NodeError, VerificationDiffers
from orchestrator.model.inventory import NodeSpec
from orchestrator.node.failure import Failure, os_failures
from orchestrator.planning.judgement import Judgement, judge
from orchestrator.protocol.jobs import (
    InspectAnswer,
    InspectRequest,
    Progress,
    Reblocked,
    ReblockLine,
    ReblockRequest,
    WouldReblock,
)
from orchestrator.protocol.message import parsed
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal
from orchestrator.remote.session import Session

Report = Callable[[str, Progress], None]
"""Told what is being done ('re-blocking', 'proving') and how far it is."""

_ERRORS: dict[str, type[DeployError]] = {"differs": VerificationDiffers, "lock-held": LockHeld}
"""Kinds of failure that are no matter of input."""


def reblock_here(source: Path, target: Path, *, block: int, with_proof: bool, jobs: int, report: Report) -> Reblocked:
    """Re-block a local checkpoint. With a proof asked for, a finished target is compared and not touched.

    Raises InputError, LockHeld, and VerificationDiffers where the proof fails.
    """
    with _told(target):
        return reblocked(plan(source, block), target, with_proof=with_proof, jobs=jobs, report=report)


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


T = TypeVar("T")
_LAYER = re.compile(r"[0-9]{1,9}")

_KINDS: Mapping[str, type[DeployError]] = {
    "differs": VerificationDiffers,
    "lock-held": LockHeld,
    "defect": DeployError,
}


def reblock_there(
    node: NodeSpec,
    source: str,
    target: str,
    *,
    block: int,
    with_proof: bool,
    jobs: int | None,
    report: Report,
) -> Reblocked:
    """Re-block a checkpoint on the node that has it. When this process ends, the node stops; the next run continues.

    Raises as reblock_here does, and Unreachable.
    """
    request = ReblockRequest(source=source, target=target, block=block, prove=with_proof, jobs=jobs)
    return on_node(node, lambda session: followed(session, request, report))


def survey_there(node: NodeSpec, source: str, target: str, *, block: int) -> WouldReblock:
    """What `reblock_there` would write; writes nothing. Raises as it would at its beginning."""
    request = ReblockRequest(source=source, target=target, block=block, dry_run=True)
    return on_node(node, lambda session: surveyed(session, request))


def on_node(
    node: NodeSpec,
    work: Callable[[Session], T],
    kinds: Mapping[str, type[DeployError]] = _KINDS,
    otherwise: type[DeployError] = InputError,
) -> T:
    """Work on one node. Raises its refusal as the error of its kind, and Unreachable."""
    with Fleet([node]) as fleet:
        done = fleet.on_every(work)
    for failure in done.failures.values():
        if isinstance(failure, NodeRefusal):
            kind = kinds.get(failure.kind, otherwise)
            raise kind(failure.what, where=failure.where, fix=failure.fix)
        raise failure
    return done.values[node.name]


def inspect_there(node: NodeSpec, directory: str) -> Judgement:
    """Inspect a checkpoint on a node. Raises InputError where there is none, and Unreachable."""
    request = InspectRequest(directory=directory)
    return on_node(node, lambda session: inspected(session, request), kinds={})


def inspected(session: Session, request: InspectRequest) -> Judgement:
    """What one node says of a directory, judged. Raises as `node_app.ask` does."""
    answer = node_app.ask(session, "inspect", request, InspectAnswer, deadline_s=INSPECT_S)
    return judge(_facts(session, answer))


def followed(session: Session, request: ReblockRequest, report: Report) -> Reblocked:
    """What one node says of a re-blocking, to its end. Raises as `node_app.messages` does."""
    for said in node_app.messages(session, "reblock", request, ReblockLine):
        if said.progress is not None:
            report(said.doing, said.progress)
        if said.outcome is not None:
            for block in (said.outcome.old_block, said.outcome.new_block):
                _check_block(session, block)
            return said.outcome
    raise _no_result(session)


def surveyed(session: Session, request: ReblockRequest) -> WouldReblock:
    """What one node says that it would write. Raises as `node_app.messages` does."""
    for said in node_app.messages(session, "reblock", request, ReblockLine):
        if said.would is not None:
            return said.would
    raise _no_result(session)


def _no_result(session: Session) -> NodeError:
    return NodeError("re-blocking ended without a result", where=session.spec.name, fix="run it again; it resumes")


def _check_block(session: Session, said: tuple[int, ...]) -> None:
    if len(said) != 2 or min(said) < 1:
        raise _odd(session, "a block has two sides above 0")


def _facts(session: Session, answer: InspectAnswer) -> Mapping[str, Any]:
    """As `judge` takes them from a directory of this machine. Raises NodeError."""
    config = parsed(answer.config)
    if not isinstance(config, Mapping):
        raise _odd(session, "its config is not a JSON object")
    if not all(_LAYER.fullmatch(layer) for layer in (*answer.layers, *answer.experts)):
        raise _odd(session, "a layer is a number")
    if answer.block is not None:
        _check_block(session, answer.block)
    return {**answer.as_json(), "config": config}


def _odd(session: Session, what: str) -> NodeError:
    return NodeError(f"its answer can't be read: {what}", where=session.spec.name, fix="check that node's memory")
