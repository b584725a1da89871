"""Work on one machine's checkpoint: re-block, verify, check, download; here, or on the node that has it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.secret_file import read_private_line
from orchestrator.model.deadlines import INSPECT_S
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.planning.host import venv
from orchestrator.planning.judgement import Judgement, judge
from orchestrator.protocol.errors import DeployError, InputError, LockHeld, NodeError, VerificationDiffers
from orchestrator.protocol.jobs import (
    Downloaded,
    HubLine,
    HubRequest,
    InspectAnswer,
    InspectRequest,
    Reblocked,
    ReblockLine,
    ReblockRequest,
    WouldDownload,
    WouldReblock,
)
from orchestrator.protocol.message import parsed
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal, StreamLimit
from orchestrator.remote.session import Session

T = TypeVar("T")
L = TypeVar("L", ReblockLine, HubLine)
Hub = Literal["huggingface", "modelscope"]

_KINDS: Mapping[str, type[DeployError]] = {"differs": VerificationDiffers, "lock-held": LockHeld, "defect": DeployError}
"""Kinds of failure that are no matter of input."""
_HUB_KINDS: Mapping[str, type[DeployError]] = {**_KINDS, "not-found": InputError, "refused": InputError}
"""Of a download, where all others are the node's."""
_LAYER = re.compile(r"[0-9]{1,9}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_PAGE = re.compile(r"https://[^/]+/(?:models/)?(?P<repo>[^/]+/[^/]+)/?")


def reblock(node: NodeSpec | None, request: ReblockRequest, report: Callable[[ReblockLine], None]) -> Reblocked:
    """Re-block a checkpoint on the node that has it, None for this machine. With a proof asked for, a finished target
    is compared and not touched. When this process ends, the node stops; the next run continues.

    Raises InputError, LockHeld, Unreachable, and VerificationDiffers where the proof fails.
    """
    outcome = _on(node, lambda session: followed(session, "reblock", request, ReblockLine, report)).outcome
    assert outcome is not None
    return outcome


def survey(node: NodeSpec | None, request: ReblockRequest) -> WouldReblock:
    """What `reblock` would write; writes nothing. Raises as it would at its beginning."""
    asked = replace(request, dry_run=True)
    would = _on(node, lambda session: followed(session, "reblock", asked, ReblockLine, lambda _: None)).would
    assert would is not None
    return would


def check(node: NodeSpec | None, directory: str) -> Judgement:
    """Look at a checkpoint directory. Raises InputError where there is none, and Unreachable."""
    return _on(node, lambda session: inspected(session, InspectRequest(directory=directory)))


HERE = "this machine"


def here() -> NodeSpec:
    """This machine as a node."""
    reach = Reach(connection="local", host="localhost", python=sys.executable)
    return NodeSpec(name=HERE, gang="", node_rank=0, reach=reach)


def _on(
    node: NodeSpec | None,
    work: Callable[[Session], T],
    kinds: Mapping[str, type[DeployError]] = _KINDS,
    otherwise: type[DeployError] = InputError,
) -> T:
    """Work on one node, None for this machine. Raises its refusal as the error of its kind, and Unreachable."""
    spec = node or here()
    with Fleet([spec]) as fleet:
        done = fleet.on_every(work)
    for failure in done.failures.values():
        raise of_its_kind(failure, kinds, otherwise)
    return done.values[spec.name]


def of_its_kind(
    failure: DeployError, kinds: Mapping[str, type[DeployError]], otherwise: type[DeployError] | None = None
) -> DeployError:
    """A node's refusal as the error of its kind, for its exit code; of no kind: as `otherwise`, or as it is."""
    kind = kinds.get(failure.kind, otherwise) if isinstance(failure, NodeRefusal) else None
    return kind(failure.what, where=failure.where.removeprefix(f"{HERE}: "), fix=failure.fix) if kind else failure


def inspected(session: Session, request: InspectRequest) -> Judgement:
    """What one node says of a directory, judged. Raises as `node_app.ask` does."""
    answer = node_app.ask(session, "inspect", request, InspectAnswer, deadline_s=INSPECT_S)
    return judge(_facts(session, answer))


_WORKS = StreamLimit(line_s=INSPECT_S)


def followed(
    session: Session, verb: str, request: ReblockRequest | HubRequest, kind: type[L], report: Callable[[L], None]
) -> L:
    """The line with which one node ends its work, and all others to `report`. Raises as `node_app.messages` does."""
    for line in node_app.messages(session, verb, request, kind, _WORKS):
        if (ended := line.would if request.dry_run else line.outcome) is not None:
            if isinstance(ended, (Reblocked, WouldReblock)):
                for block in (ended.old_block, ended.new_block):
                    _check_block(session, block)
            return line
        report(line)
    what = f"its part of `checkpoint {verb}` ended without a result"
    raise NodeError(what, where=session.spec.name, fix="run it again; it resumes")


def _check_block(session: Session, block: tuple[int, ...]) -> None:
    if len(block) != 2 or min(block) < 1:
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


def hub_request(
    node: NodeSpec,
    repo: str,
    *,
    hub: Hub = "huggingface",
    revision: str = "",
    name: str = "",
    python: str = "",
    endpoint: str = "",
    token_file: Path | None = None,
    exclude: tuple[str, ...] = (),
) -> HubRequest:
    """What a node is asked to download. Raises InputError.

    repo: OWNER/NAME, or a profile's name whose source is a page of the hub. revision: '' for the hub's newest. name: of
    the directory below the node's model root, '' for the repository's. python: an interpreter on the node that has the
    hub's client, '' for the stack's. endpoint: another address of the hub. exclude: globs
    """
    repo = _repository(repo)
    name = name or repo.partition("/")[2]
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) is None:
        raise InputError(f"{name!r} is not a directory's name", where="--as", fix="use letters, digits, and . _ + -")
    file = token_file.expanduser() if token_file else None
    return HubRequest(
        hub=hub,
        repo=repo,
        revision=revision,
        directory=f"{node.model_root}/{name}",
        python=python or _interpreter(node),
        endpoint=endpoint,
        exclude=exclude,
        token=read_private_line(file, what="the hub's token", where="--token-file") if file else "",
    )


def download(node: NodeSpec, request: HubRequest, report: Callable[[HubLine], None]) -> Downloaded:
    """A repository of a model hub onto one node, by the hub's own client there; verified, then the directory gets its
    name. When this process ends, the node stops; the next run goes on.

    Raises InputError, Unreachable, LockHeld, VerificationDiffers, NodeError.
    """
    outcome = _ask_hub(node, request, report).outcome
    assert outcome is not None
    return outcome


def would_download(node: NodeSpec, request: HubRequest) -> WouldDownload:
    """Ask the hub, from the node, what there is; nothing is written. Raises as `download` would at its beginning."""
    would = _ask_hub(node, replace(request, dry_run=True), lambda _: None).would
    assert would is not None
    return would


def _ask_hub(node: NodeSpec, asked: HubRequest, report: Callable[[HubLine], None]) -> HubLine:
    return _on(node, lambda session: followed(session, "download", asked, HubLine, report), _HUB_KINDS, NodeError)


def _repository(word: str) -> str:
    if _REPOSITORY.fullmatch(word):
        return word
    if "/" not in word:
        if (page := _PAGE.fullmatch(load_profile(word).source)) is not None:
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
