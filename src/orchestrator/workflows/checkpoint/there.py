"""`checkpoint reblock` and `inspect` on a node: the work is the node application's, the operator sees how far it is."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.checkpoint.judgement import Judgement, judge
from orchestrator.model.errors import DeployError, InputError, LockHeld, NodeError, VerificationDiffers
from orchestrator.model.inventory import NodeSpec
from orchestrator.node.checkpoint.prove import Proof
from orchestrator.node.checkpoint.reblock import Progress
from orchestrator.protocol.jobs import InspectRequest, Reblocked, ReblockLine, ReblockRequest, WouldReblock
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal
from orchestrator.remote.session import Session
from orchestrator.workflows.checkpoint.checkpoint import Outcome, Report

INSPECT_S = 300.0
"""For the headers of all shards; a cold network file system takes its time."""

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
    durable: bool,
    report: Report,
) -> Outcome:
    """Re-block a checkpoint that lies on a node, there. When this process ends, the node stops; the next run goes on.

    Raises as reblock_here does, and Unreachable.
    """
    request = ReblockRequest(source=source, target=target, block=block, prove=with_proof, jobs=jobs, durable=durable)
    outcome = _ask(node, request, report).outcome
    assert outcome is not None
    return _outcome(outcome)


def survey_there(node: NodeSpec, source: str, target: str, *, block: int) -> WouldReblock:
    """What `reblock_there` would write; writes nothing. Raises as it would at its beginning."""
    request = ReblockRequest(source=source, target=target, block=block, dry_run=True)
    would = _ask(node, request, lambda *_: None).would
    assert would is not None
    return would


def _ask(node: NodeSpec, request: ReblockRequest, report: Report) -> ReblockLine:
    with Fleet([node]) as fleet:
        done = fleet.on_every(lambda session: _follow(session, request, report))
    for failure in done.failures.values():
        if isinstance(failure, NodeRefusal):
            kind = _KINDS.get(failure.kind, InputError)
            raise kind(failure.what, where=failure.where, fix=failure.fix)
        raise failure
    return done.values[node.name]


def inspect_there(node: NodeSpec, directory: str) -> Judgement:
    """Look at a checkpoint that lies on a node. Raises InputError where there is none, and Unreachable."""
    request = InspectRequest(directory=directory)
    with Fleet([node]) as fleet:
        looked = fleet.on_every(lambda session: node_app.call(session, "inspect", request, deadline_s=INSPECT_S))
    for failure in looked.failures.values():
        raise (
            InputError(failure.what, where=failure.where, fix=failure.fix)
            if isinstance(failure, NodeRefusal)
            else failure
        )
    return judge(looked.values[node.name])


def _follow(session: Session, request: ReblockRequest, report: Report) -> ReblockLine:
    for said in node_app.messages(session, "reblock", request, ReblockLine):
        if said.progress is not None:
            report(said.doing, Progress(**said.progress))
        if said.outcome is not None or said.would is not None:
            return said
    raise NodeError("re-blocking ended without a result", where=session.spec.name, fix="run it again; it resumes")


def _outcome(said: Reblocked) -> Outcome:
    return Outcome(
        Progress(**said.written) if said.written else None,
        Proof(**said.proof) if said.proof else None,
        (said.old_block[0], said.old_block[1]),
        (said.new_block[0], said.new_block[1]),
    )
