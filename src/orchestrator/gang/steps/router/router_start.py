"""What a start of the router carries out, by the inventory, the controller's files and the release on its host."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from http import HTTPStatus

from orchestrator.engines import router as words
from orchestrator.engines.engine import STUB_FILE, Engine
from orchestrator.engines.registry import engine_of, newest
from orchestrator.gang.steps.router.client import Router, key_in
from orchestrator.gang.steps.router.host import (
    ask_from,
    certificate_file,
    certified_key,
    installed_router,
    local_url,
)
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.view import GangView
from orchestrator.loading.profiles import load_stack, reported_stack
from orchestrator.loading.resources import template
from orchestrator.model.deadlines import (
    ROUTER_ASK_S,
)
from orchestrator.model.inventory import ROUTER_GANG, Inventory, RouterSpec
from orchestrator.model.secret_text import fingerprint
from orchestrator.planning.admission import limit_at_start
from orchestrator.planning.plan_file import short_digest
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Endpoint, Ports, SecretFile, Secrets, ServiceOrder, StagingRequest
from orchestrator.protocol.verbs import HttpRequest


def start_now(router: Router, inventory: Inventory, gangs: Sequence[GangView], *, plan_id: str = "") -> Staged:
    """What a start would carry out now."""
    at = installed_for(router)
    limit = limit_now(router, inventory, gangs)
    return start_of(router, _health_path(router, inventory, gangs), at, plan_id=plan_id, limit=limit)


def limit_now(router: Router, inventory: Inventory, gangs: Iterable[GangView]) -> int | None:
    """Most requests that a router which starts now lets in, by what its gangs say that they run; None: any number."""
    told = {view.name: view.runs_at_once for view in gangs}
    return limit_at_start(router.spec.max_requests, [told.get(gang.name) for gang in inventory.gangs])


def start_of(
    router: Router, health_path: str, at: words.InstalledRouter, *, plan_id: str = "", limit: int | None = None
) -> Staged:
    """plan_id: '' for its own, which is the same for every start with the same settings: the admin key, generated for
    each, is no part of it, and a limit by what the gangs run only as the word for it. limit: as of `limit_now`"""
    spec, front = router.spec, _front(router.spec)
    argv = _argv(spec, at, health_path, "" if limit is None else str(limit))
    asked = _argv(spec, at, health_path, spec.max_requests)
    plan_id = plan_id or short_digest([*asked, fingerprint(front.api_key), front.certificate, fingerprint(front.key)])
    listens = "" if spec.node.http_host == "0.0.0.0" else spec.node.http_host  # noqa: S104 - compared, not bound
    request = StagingRequest(
        state_dir=spec.node.state_dir,
        gang=ROUTER_GANG,
        run_id="",
        node=spec.node.name,
        node_rank=0,
        nnodes=1,
        members=(spec.node.name,),
        plan_id=plan_id,
        model="all gangs",
        stack=at.release.name,
        device="cpu",
        engine_user=spec.node.engine_user,
        argv=tuple(argv),
        command=tuple(argv),
        venv_python=argv[0],
        python_fix=words.PYTHON_FIX,
        ports=Ports(check_free=(Endpoint(address=listens, port=spec.port),)),
        leader=Endpoint(address="127.0.0.1", port=router.gang.leader.ports.agent),
        lease_s=spec.node.lease_s,
        service=ServiceOrder(url=local_url(spec), certificate=certificate_file(spec)),
        watch=words.watch(health_path),
        request_limit=limit,
        secrets=_secrets(replace(front, admin_key=secrets.token_hex(24))),
        launch_script=words.launch_script(at.release, argv),
    )
    return Staged(gang=router.gang, requests={spec.node.name: request}, document={"plan_id": plan_id, "argv": argv})


def _argv(spec: RouterSpec, at: words.InstalledRouter, health_path: str, limit: str) -> list[str]:
    return words.command(
        at,
        spec.node.http_host,
        spec.port,
        spec.metrics_port,
        health_path,
        policy=spec.policy,
        tls=spec.tls_cert is not None,
        max_requests=limit,
    )


def _health_path(router: Router, inventory: Inventory, gangs: Sequence[GangView]) -> str:
    """By the versions of the gangs' stacks; /health where an engine that serves lacks what its version should have."""
    family = newest()
    path = words.health_path(list(engines_behind(inventory, gangs)), family.engine(family.versions[-1]))
    urls = [view.service_url for view in gangs if view.serves and view.service_url]
    if path == words.ANY_HEALTH or not urls:
        return path
    asks = [HttpRequest(url=f"{url}{path}", timeout_s=ROUTER_ASK_S) for url in urls]
    answers = ask_from(router.fleet, router.spec.node.name, asks)
    return words.ANY_HEALTH if any(answer.status == HTTPStatus.NOT_FOUND for answer in answers) else path


def engines_behind(inventory: Inventory, gangs: Iterable[GangView]) -> Iterator[Engine]:
    """Of the stacks that the gangs run, and that the inventory names for gangs that run none now. A stack whose file is
    gone has none: what runs by it is asked."""
    for name in {node.stack for node in inventory.nodes if node.stack}:
        with suppress(InputError):
            yield engine_of(load_stack(name))
    for name in {view.stack for view in gangs}:
        with suppress(InputError):
            yield engine_of(reported_stack(name))


def _front(spec: RouterSpec) -> words.Front:
    """What guards its port, as the controller's files say now; without an admin key, which each start makes."""
    tls = certified_key(spec)
    return words.Front(
        api_key=key_in(spec.node.api_key_file, ROUTER_GANG),
        certificate=tls.certificate if tls else "",
        key=tls.key if tls else "",
    )


def refuse_expired(spec: RouterSpec) -> None:
    tls = certified_key(spec)
    if tls is not None and tls.until < datetime.now(timezone.utc):
        raise InputError(
            f"{spec.tls_cert} expired on {tls.until:%Y-%m-%d}, so clients would refuse the router",
            where=f"inventory: {spec.node.name}: l40s_router_tls_cert",
            fix="put a new certificate and its key there, then run the command again",
        )


def installed_for(router: Router) -> words.InstalledRouter:
    """The release on its host that is started by these settings. Raises what the host's answer raises."""
    return installed_router(router.fleet, router.spec, two_keys=_two_keys(router.spec))


def _two_keys(spec: RouterSpec) -> bool:
    asked, gangs = key_in(spec.node.api_key_file, ROUTER_GANG), key_in(spec.gang_key_file, "gangs")
    return bool(asked and gangs and asked != gangs)


def refuse_two_keys(spec: RouterSpec, start: Staged) -> None:
    """smg passes the key that a client sends on to the gang, whatever key it was given for the gang itself."""
    if words.looks_at_models(start.requests[spec.node.name].stack) and _two_keys(spec):
        raise InputError(
            "the router's key differs from the gangs', and it passes its clients' key on to them: every request would"
            " be refused with HTTP 401",
            where=f"inventory: {spec.node.name}: l40s_api_key_file",
            fix="name one file for the group `router` and for the gangs",
        )


def _secrets(front: words.Front) -> Secrets:
    """The agent asks its router as its administrator does."""
    return Secrets(
        files=tuple(SecretFile(name=name, text=text) for name, text in front.files(template(STUB_FILE))),
        redact=tuple(secret for secret in (front.admin_key, front.api_key) if secret),
        authorization=f"Bearer {front.admin_key}",
    )
