"""The machine that the router runs on: its agent's gang of one node, and HTTP requests made there.

Our own machine needs to reach SSH only, so the router is asked on its host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.engines.serving import CERTIFICATE_FILE
from orchestrator.gang.remarks import of_certificate, of_tls_files
from orchestrator.gang.steps.status.reports import request_keys
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import PREREQUISITES_S
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import ROUTER_GANG, GangSpec, Inventory, RouterSpec
from orchestrator.protocol.addresses import host_port
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.looks import PrerequisitesAnswer, PrerequisitesRequest
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import AskRequest, GangRequest, HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask, ask_http, ask_staged

if TYPE_CHECKING:
    from orchestrator.engines.router import InstalledRouter
    from orchestrator.loading.secret_file import CertifiedKey


def router_gang(spec: RouterSpec) -> GangSpec:
    """The router as a gang of one node."""
    agent = spec.node.ports.agent + 1  # a gang's leader may live on the same machine
    node = replace(spec.node, gang=ROUTER_GANG, ports=replace(spec.node.ports, agent=agent))
    return GangSpec(name=ROUTER_GANG, nodes=(node,), url=local_url(spec))


def gangs_and_router(inventory: Inventory, names: Sequence[str]) -> tuple[tuple[GangSpec, ...], ...]:
    """The gangs of these names, and the router's own where it is named or nothing is: apart from each other, since its
    host may be a gang's node too, with other settings. Raises InputError for an unknown name."""
    gangs = tuple(name for name in names if inventory.router is None or name != ROUTER_GANG)
    chosen = chosen_gangs(inventory, gangs) if gangs or not names else ()
    parts = [chosen] if chosen else []
    if inventory.router is not None and (not names or ROUTER_GANG in names):
        parts.append((router_gang(inventory.router),))
    return tuple(parts)


def installed_router(fleet: Fleet, spec: RouterSpec, *, two_keys: bool = False) -> InstalledRouter:
    """The router's release on its host. fleet: of the router's gang. Raises what the host's answer raises."""
    from orchestrator.engines import router as words  # what `status` does not need

    packages = tuple(release.package for release in words.RELEASES)
    request = PrerequisitesRequest(environments=words.places(spec.venv), packages=packages)
    answers = fleet.on_every(
        lambda session: ask(session, "prerequisites", request, PrerequisitesAnswer, deadline_s=PREREQUISITES_S),
        only=[spec.node.name],
    ).all()
    return words.installed(answers[spec.node.name].packages, spec.venv, two_keys=two_keys)


def staged_router(fleet: Fleet, spec: RouterSpec) -> StagingRequest | None:
    """What its newest run was started with; None where its node can't tell."""
    request = GangRequest(**request_keys(spec.node, ROUTER_GANG))
    answers = fleet.on_every(lambda session: ask_staged(session, request), only=[spec.node.name])
    answer = answers.values.get(spec.node.name)
    staged = None if answer is None else StagingRequest.read(answer.request)
    return staged if isinstance(staged, StagingRequest) else None


def local_url(spec: RouterSpec) -> str:
    """Where the router is asked by its own host."""
    host = spec.node.http_host
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    return f"{spec.scheme}://{host_port(local, spec.port)}"


def certificate_file(spec: RouterSpec) -> str:
    """The secret file of its gang with the certificate that it shows; '' where it speaks plain HTTP."""
    return CERTIFICATE_FILE if spec.tls_cert else ""


TLS_CERT = "l40s_router_tls_cert"


def certificate_findings(spec: RouterSpec, view: GangView) -> tuple[Finding, ...]:
    """What is wrong about the certificate that the running router shows, and about the files of this machine that it
    would be started with again. A certificate's file that can't be read is no newer one."""
    if not view.serves or not view.certificate:
        return ()
    from orchestrator.loading.secret_file import read_certificate, valid_until  # what most looks do not need

    newer = None
    if spec.tls_cert is not None:
        with suppress(InputError):
            newer = valid_until(read_certificate(Path(spec.tls_cert).expanduser(), where=TLS_CERT))
    expires = of_certificate(valid_until(view.certificate), datetime.now(timezone.utc), newer, TLS_CERT)
    return (*expires, *of_tls_files(_why_unfit(spec)))


def certified_key(spec: RouterSpec) -> CertifiedKey | None:
    """The certificate and key that the router is started with, as the controller's files say now; None for plain HTTP.
    Raises InputError."""
    return _read_tls_files(*files, spec.node.name) if (files := _tls_files(spec)) else None


def _tls_files(spec: RouterSpec) -> tuple[Path, Path] | None:
    if spec.tls_cert is None or spec.tls_key is None:
        return None
    return Path(spec.tls_cert).expanduser(), Path(spec.tls_key).expanduser()


def _read_tls_files(cert: Path, key: Path, node: str) -> CertifiedKey:
    from orchestrator.loading.secret_file import read_certified_key

    place = f"inventory: {node}"
    return read_certified_key(cert, key, where=f"{place}: {TLS_CERT}", key_where=f"{place}: l40s_router_tls_key")


def _why_unfit(spec: RouterSpec) -> InputError | None:
    """Why the files that TLS needs would not start the router again; None where they would, where a start needs none,
    and where they may not be this user's to read: both are elsewhere, or another user's."""
    files = _tls_files(spec)
    return _unfit(*files, spec.node.name, tuple(map(_state_of, files))) if files else None


@lru_cache(maxsize=8)
def _unfit(cert: Path, key: Path, node: str, _states: tuple[tuple[int, ...], ...]) -> InputError | None:
    """Known until the files change: a guard looks every two seconds, and to load a private key takes 30 to 200 ms."""
    try:
        _read_tls_files(cert, key, node)
    except InputError as error:
        there = [file for file in (cert, key) if os.path.lexists(file)]
        return error if there and all(os.access(file, os.R_OK) for file in there) else None
    return None


def _state_of(file: Path) -> tuple[int, ...]:
    """Another one where the file, its content, its mode or its owner is another."""
    try:
        found = file.stat()
    except OSError:
        return (os.path.lexists(file),)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def router_ask(method: str, path: str, body: object = None, *, timeout_s: float) -> HttpRequest:
    """A request to the router's own interface as the verb `ask` takes it, in the name of `router_gang`: to the router
    that was started last, whatever port or certificate its inventory names by now."""
    text = None if body is None else json.dumps(body)
    return HttpRequest(method=method, url=path, body=text, timeout_s=timeout_s)


def ask_router(
    fleet: Fleet, spec: RouterSpec, method: str, path: str, body: object = None, *, timeout_s: float
) -> HttpAnswer:
    """One such request, with the router's admin key, which never leaves its host."""
    asked = router_ask(method, path, body, timeout_s=timeout_s)
    return ask_from(fleet, spec.node.name, [asked], **request_keys(spec.node, ROUTER_GANG))[0]


def ask_from(
    fleet: Fleet, node: str, asks: Sequence[HttpRequest], *, state_dir: str | None = None, gang: str = ""
) -> tuple[HttpAnswer, ...]:
    """HTTP requests made on a node. Raises what the node's answer raises; a refused connection is an answer.

    gang: on that node, whose key each request carries; '' for none
    """
    deadline_s = sum(ask.timeout_s for ask in asks) + 10.0
    request = AskRequest(state_dir=state_dir, gang=gang, asks=tuple(asks))
    return fleet.on_every(lambda session: ask_http(session, request, deadline_s=deadline_s), only=[node]).all()[node]
