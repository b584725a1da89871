"""Work on one machine's checkpoint: re-block, prove, inspect, download; here, or on the node that has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from orchestrator.checkpoint.on_node.directory import look
from orchestrator.checkpoint.on_node.prove import reblocked
from orchestrator.checkpoint.on_node.reblock import plan
from orchestrator.checkpoint.on_node.reblock import survey as survey_here
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.secret_file import read_private_line
from orchestrator.model.deadlines import INSPECT_S
from orchestrator.model.errors import DeployError, InputError, LockHeld, NodeError, VerificationDiffers
from orchestrator.model.inventory import NodeSpec
from orchestrator.node.failure import Failure, os_failures
from orchestrator.planning.host import venv
from orchestrator.planning.judgement import Judgement, judge
from orchestrator.protocol.jobs import (
    Downloaded,
    HubLine,
    HubRequest,
    InspectAnswer,
    InspectRequest,
    Progress,
    Reblocked,
    ReblockLine,
    ReblockRequest,
    WouldDownload,
    WouldReblock,
)
from orchestrator.protocol.message import parsed
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal
from orchestrator.remote.session import Session

T = TypeVar("T")
Hub = Literal["huggingface", "modelscope"]
Report = Callable[[str, Progress], None]
"""Told what is being done ('re-blocking', 'proving') and how far it is."""

_KINDS: Mapping[str, type[DeployError]] = {
    "differs": VerificationDiffers,
    "lock-held": LockHeld,
    "defect": DeployError,
}
"""Kinds of failure that are no matter of input."""
_HUB_KINDS: Mapping[str, type[DeployError]] = {**_KINDS, "not-found": InputError, "refused": InputError}
"""Of a download, where all others are the node's."""
_LAYER = re.compile(r"[0-9]{1,9}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_PAGE = re.compile(r"https://[^/]+/(?:models/)?(?P<repo>[^/]+/[^/]+)/?")


def reblock(node: NodeSpec | None, request: ReblockRequest, report: Report) -> Reblocked:
    """Re-block a checkpoint on the node that has it, None for this machine. With a proof asked for, a finished target
    is compared and not touched. When this process ends, the node stops; the next run continues.

    Raises InputError, LockHeld, Unreachable, and VerificationDiffers where the proof fails.
    """
    if node is not None:
        return _on(node, lambda session: followed(session, request, report))
    with _told(request.target):
        job = plan(Path(request.source), request.block)
        return reblocked(job, Path(request.target), with_proof=request.prove, jobs=request.jobs, report=report)


def survey(node: NodeSpec | None, request: ReblockRequest) -> WouldReblock:
    """What `reblock` would write; writes nothing. Raises as it would at its beginning."""
    if node is not None:
        return _on(node, lambda session: surveyed(session, replace(request, dry_run=True)))
    with _told(request.target):
        return survey_here(plan(Path(request.source), request.block), Path(request.target))


def inspect(node: NodeSpec | None, directory: str) -> Judgement:
    """Look at a checkpoint directory. Raises InputError where there is none, and Unreachable."""
    if node is not None:
        return _on(node, lambda session: inspected(session, InspectRequest(directory=directory)), kinds={})
    with _told(directory):
        return judge(look(Path(directory)))


@contextmanager
def _told(place: str) -> Iterator[None]:
    try:
        with os_failures(place):
            yield
    except Failure as failure:
        kind = _KINDS.get(failure.kind, InputError)
        raise kind(failure.what, where=failure.where, fix=failure.fix) from None


def _on(
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
    raise _no_result(session, "re-blocking")


def surveyed(session: Session, request: ReblockRequest) -> WouldReblock:
    """What one node says that it would write. Raises as `node_app.messages` does."""
    for said in node_app.messages(session, "reblock", request, ReblockLine):
        if said.would is not None:
            return said.would
    raise _no_result(session, "re-blocking")


def _no_result(session: Session, doing: str) -> NodeError:
    return NodeError(f"{doing} ended without a result", where=session.spec.name, fix="run it again; it resumes")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRequest:
    """repo: OWNER/NAME, or a profile's name whose source is a page of the hub. revision: '' for the hub's newest.

    name: of the directory below the node's model root, '' for the repository's. python: an interpreter on the node that
    has the hub's client, '' for the stack's. endpoint: another address of the hub. exclude: globs
    """

    repo: str
    hub: Hub = "huggingface"
    revision: str = ""
    name: str = ""
    python: str = ""
    endpoint: str = ""
    token_file: Path | None = None
    exclude: tuple[str, ...] = ()


def download(node: NodeSpec, request: DownloadRequest, report: Callable[[HubLine], None]) -> Downloaded:
    """A repository of a model hub onto one node, by the hub's own client there; verified, then the directory gets its
    name. When this process ends, the node stops; the next run goes on.

    Raises InputError, Unreachable, LockHeld, VerificationDiffers, NodeError.
    """
    outcome = _ask_hub(node, _asked(node, request), report).outcome
    assert outcome is not None
    return outcome


def would_download(node: NodeSpec, request: DownloadRequest) -> WouldDownload:
    """Ask the hub, from the node, what there is; nothing is written. Raises as `download` would at its beginning."""
    would = _ask_hub(node, replace(_asked(node, request), dry_run=True), lambda _: None).would
    assert would is not None
    return would


def _ask_hub(node: NodeSpec, asked: HubRequest, report: Callable[[HubLine], None]) -> HubLine:
    return _on(node, lambda session: downloaded(session, asked, report), _HUB_KINDS, NodeError)


def downloaded(session: Session, request: HubRequest, report: Callable[[HubLine], None]) -> HubLine:
    """What one node says of a download, to its end. Raises as `node_app.messages` does."""
    for said in node_app.messages(session, "download", request, HubLine):
        if (said.would if request.dry_run else said.outcome) is not None:
            return said
        report(said)
    raise _no_result(session, "downloading")


def _asked(node: NodeSpec, request: DownloadRequest) -> HubRequest:
    repo, file = _repository(request.repo), request.token_file
    name = request.name or repo.partition("/")[2]
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) is None:
        raise InputError(f"{name!r} is not a directory's name", where="--as", fix="use letters, digits, and . _ + -")
    return HubRequest(
        hub=request.hub,
        repo=repo,
        revision=request.revision,
        directory=f"{node.model_root}/{name}",
        python=request.python or _interpreter(node),
        endpoint=request.endpoint,
        exclude=request.exclude,
        token=read_private_line(file.expanduser(), what="the hub's token", where="--token-file") if file else "",
    )


def _repository(word: str) -> str:
    if _REPOSITORY.fullmatch(word):
        return word
    if "/" not in word:
        page = _PAGE.fullmatch(load_profile(word).source)
        if page is not None:
            return page["repo"]
        what = f"the profile of {word} names no repository of a hub; wanted OWNER/NAME"
    else:
        what = f"found {word!r}; wanted OWNER/NAME"
    raise InputError(what, where="REPO", fix="l40s-deploy checkpoint download deepseek-ai/DeepSeek-V3-0324")


def _interpreter(node: NodeSpec) -> str:
    """Of the engine's environment: sglang brings both clients."""
    if node.venv is None and node.stack is None:
        raise InputError(
            "no stack is set for it, whose environment has the hub's client",
            where=node.name,
            fix="set l40s_stack in the inventory, or use --python PATH",
        )
    return f"{node.venv or venv(node, load_stack(node.stack or '').name)}/bin/python"
