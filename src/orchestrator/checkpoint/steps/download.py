"""`checkpoint download`: a repository of a model hub onto one node, by the hub's own client there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.checkpoint.steps.checkpoint import on_node
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.secret_file import read_private_line
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import DeployError, InputError, LockHeld, NodeError, VerificationDiffers
from orchestrator.model.inventory import NodeSpec
from orchestrator.planning.places import venv
from orchestrator.protocol.jobs import Downloaded, HubLine, HubRequest, WouldDownload
from orchestrator.remote import node_app
from orchestrator.remote.session import Session

Hub = Literal["huggingface", "modelscope"]

_KINDS: Mapping[str, type[DeployError]] = {
    "differs": VerificationDiffers,
    "lock-held": LockHeld,
    "defect": DeployError,
    "not-found": InputError,
    "refused": InputError,
}
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_PAGE = re.compile(r"https://[^/]+/(?:models/)?(?P<repo>[^/]+/[^/]+)/?")


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
    """Download, verify, and give the directory its name. When this process ends, the node stops; the next run goes on.

    Raises InputError, Unreachable, LockHeld, VerificationDiffers, NodeError.
    """
    outcome = _ask(node, _asked(node, request), report).outcome
    assert outcome is not None
    return outcome


def would_download(node: NodeSpec, request: DownloadRequest) -> WouldDownload:
    """Ask the hub, from the node, what there is; nothing is written. Raises as `download` would at its beginning."""
    would = _ask(node, replace(_asked(node, request), dry_run=True), lambda _: None).would
    assert would is not None
    return would


def _asked(node: NodeSpec, request: DownloadRequest) -> HubRequest:
    repo = _repository(request.repo)
    return HubRequest(
        hub=request.hub,
        repo=repo,
        revision=request.revision,
        directory=f"{node.model_root}/{_name(request.name or repo.partition('/')[2])}",
        python=(request.python,) if request.python else tuple(_interpreters(node)),
        endpoint=request.endpoint,
        exclude=tuple(request.exclude),
        token=_token(request.token_file),
    )


def _ask(node: NodeSpec, asked: HubRequest, report: Callable[[HubLine], None]) -> HubLine:
    return on_node(node, lambda session: _follow(session, asked, report), _KINDS, NodeError)


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


def _name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) is None:
        raise InputError(f"{name!r} is not a directory's name", where="--as", fix="use letters, digits, and . _ + -")
    return name


def _interpreters(node: NodeSpec) -> list[str]:
    """The environments of the engine: sglang brings both clients."""
    if node.venv is None and node.stack is None:
        raise InputError(
            "no stack is set for it, whose environment has the hub's client",
            where=node.name,
            fix="set l40s_stack in the inventory, or use --python PATH",
        )
    return [f"{node.venv or venv(node, load_stack(node.stack or '').name)}/bin/python"]


def _token(path: Path | None) -> str:
    return read_private_line(path.expanduser(), what="the hub's token", where="--token-file") if path else ""


def _follow(session: Session, request: HubRequest, report: Callable[[HubLine], None]) -> HubLine:
    for said in node_app.messages(session, "download", request, HubLine):
        if (said.would if request.dry_run else said.outcome) is not None:
            return said
        report(said)
    raise NodeError("downloading ended without a result", where=session.spec.name, fix="run it again; it resumes")
