"""The router before the gangs: started like a gang of one node without ranks, configured over its own REST interface.

All HTTP goes through the node's verb `ask`: the router's host must reach the gangs, we need to reach only SSH.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from orchestrator.engines import router as words
from orchestrator.engines.engine import STUB_FILE, Engine
from orchestrator.engines.registry import engine_of, load_paths, newest
from orchestrator.engines.serving import RUN_LABEL, UNKNOWN_MODEL, Worker, running_requests, workers
from orchestrator.gang.agreement import DISAGREES
from orchestrator.gang.serving import Serving, lost_models
from orchestrator.gang.steps.changes import GangRehearsal, would, would_stop
from orchestrator.gang.steps.down import StopResult, stop_gangs
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher, everybody_answers, raise_all
from orchestrator.gang.steps.router.claim import CLAIM
from orchestrator.gang.steps.router.host import (
    ask_from,
    ask_router,
    certificate_file,
    installed_router,
    local_url,
    router_gang,
    staged_router,
)
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.steps.status.reports import refuse_elsewhere, see, shown_locks
from orchestrator.gang.view import GangView
from orchestrator.loading.profiles import load_stack, reported_stack
from orchestrator.loading.resources import template
from orchestrator.loading.secret_file import CertifiedKey, read_api_key, read_certified_key
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import (
    DRAIN_S,
    HEALTH_S,
    ROUTER_ASK_S,
    ROUTER_START_S,
    STOP_S,
    TAKE_IN_S,
    TAKE_OUT_S,
)
from orchestrator.model.errors import DeployError, Exit, FindingsError, GangFailed, InputError, NodeError, WithoutFiles
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import ROUTER_GANG, GangSpec, Inventory, RouterSpec
from orchestrator.model.secret_text import fingerprint
from orchestrator.planning.plan_file import short_digest
from orchestrator.protocol.staging import Endpoint, Ports, SecretFile, Secrets, ServiceOrder, StagingRequest
from orchestrator.protocol.verbs import HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet, StragglerWait

POLL_S = 0.25
_ANSWERS_TO_A_KEY = "/v1/models"
"""Of every engine; it asks for the API key, which the paths for health do not."""
_REFUSES_THE_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_ACCEPTED = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED)
_ANEW = "`l40s-deploy router down`, then `l40s-deploy router up`,"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """The router's state. workers: empty where it does not run."""

    view: GangView
    url: str
    workers: tuple[Worker, ...] = ()
    nobodys: frozenset[str] = frozenset()
    """Addresses of workers where no gang of the inventory serves."""

    @property
    def exit_code(self) -> Exit:
        """As `status` ends for a gang: it failed, its host did not answer, it answers every request with an error."""
        if self.view.state is GangState.FAILED:
            return Exit.GANG_FAILED
        if self.view.unreachable:
            return Exit.UNREACHABLE
        sick = self.workers and not any(worker.healthy for worker in self.workers)
        return Exit.FINDINGS if sick or self.view.state is GangState.DEGRADED else Exit.DONE


class KeyRefused(NodeError):
    """A gang refuses the key that the router would send."""


class Router:
    """A router that can be configured. A context manager: it holds a connection to its host."""

    def __init__(self, spec: RouterSpec) -> None:
        self.spec = spec
        self.gang = router_gang(spec)
        self.fleet = Fleet(self.gang.nodes)

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()

    def state(self) -> RouterState:
        """Look at its agent, and at its workers where it serves."""
        view = self.view()
        return RouterState(view=view, url=self.spec.url, workers=self.workers() if view.service_healthy else ())

    def view(self) -> GangView:
        """Look at its agent."""
        (view,) = see(self.fleet, [self.gang])
        return view

    def workers(self) -> tuple[Worker, ...]:
        """Every gang that it sends requests to."""
        answer = self.ask("GET", "/workers")
        if not answer.ok:
            raise self._trouble("does not list its workers", answer)
        try:
            return workers(answer.body)
        except ValueError as wrong:
            raise self._trouble(str(wrong), answer) from None

    def looks_at_models(self) -> bool:
        """Whether it sends a request only to gangs whose model it names; not, where its host can't tell."""
        staged = staged_router(self.fleet, self.spec)
        return staged is not None and words.looks_at_models(staged.stack)

    def take_in(self, url: str, run_id: str = "", aliases: Collection[str] = ()) -> None:
        """Have requests go there, those that name an alias too.

        Returns once the engine answers what the router asks for its health, and the router counts it as healthy: a new
        worker counts as healthy until the router's checks of it have failed.

        run_id: of the gang. The router asks an engine for its model when it is added, and not again: one that was added
        for another run is added anew.
        """
        staged = staged_router(self.fleet, self.spec)
        if path := _health_path_of(staged):
            self._wait_for_health(f"{url}{path}")
        by_model = staged is not None and words.looks_at_models(staged.stack)
        run = run_id if by_model else ""
        end, done = time.monotonic() + TAKE_IN_S, False
        while not self._has(url, run):
            done = done or self._add(url, run)
            if time.monotonic() > end:
                raise self._trouble(f"did not report {url} as healthy within {TAKE_IN_S:.0f} s", HttpAnswer())
            time.sleep(POLL_S)
        if by_model and aliases:
            self._call(url, aliases, end)

    def _call(self, url: str, aliases: Collection[str], end: float) -> None:
        """Have its model answer to these names as well. The router takes the model's own name on trust, so that it is
        given what it has read itself."""
        asked = False
        while True:
            known = next((worker for worker in self.workers() if worker.url == url and worker.models), None)
            if known is not None and known.healthy and {*aliases} <= {*known.models[0].aliases}:
                return
            if known is not None and not asked:
                model = {"id": known.models[0].name, "aliases": sorted({*known.models[0].aliases, *aliases})}
                asked = self._enter(url, known, known.run, models=[model])
            if time.monotonic() > end:
                raise self._trouble(f"did not take {', '.join(aliases)} as names of {url}", HttpAnswer())
            time.sleep(POLL_S)

    def _has(self, url: str, run: str) -> bool:
        """Whether it counts this run's gang as healthy. run: '' where it does not look at models."""
        fits = (worker for worker in self.workers() if worker.url == url and worker.healthy)
        if not run:
            return any(fits)
        return any(
            worker.run == run and UNKNOWN_MODEL not in (model.name for model in worker.models) for worker in fits
        )

    def _add(self, url: str, run: str) -> bool:
        """Whether it need not be asked again: it answers 409 while it still removes or adds what is there."""
        known = next((worker for worker in self.workers() if worker.url == url), None)
        if known is not None and known.run == run:
            return True
        if known is not None and not run:
            self.refuse_other_key(url)
            return True
        return self._enter(url, known, run)

    def _enter(self, url: str, known: Worker | None, run: str, **more: object) -> bool:
        """Make the entry, or put it in the place of the known one, once the gang accepts the key in it.

        more: of the entry. Whether that was accepted.
        """
        self.refuse_other_key(url)
        labels = {"labels": {RUN_LABEL: run}} if run else {}
        body = {"url": url, **self._key_of_gangs(), **labels, **more}
        if known is None:
            answer = self.ask("POST", "/workers", body)
        else:
            answer = self.ask("PUT", f"/workers/{quote(known.id, safe='')}", body)
        if answer.status not in (*_ACCEPTED, HTTPStatus.CONFLICT):
            raise self._trouble(f"does not accept {url}", answer)
        return answer.status in _ACCEPTED

    def refuse_other_key(self, url: str) -> None:
        """Raises where this gang refuses the key that the router would send to it from now on. Its entry stays as it is
        then: the key in that one may be the one that the gang has."""
        key = self._key_of_gangs().get("api_key", "")
        if not key:
            return
        asked = HttpRequest(url=f"{url}{_ANSWERS_TO_A_KEY}", authorization=f"Bearer {key}", timeout_s=HEALTH_S)
        (answer,) = ask_from(self.fleet, self.spec.node.name, [asked])
        if answer.status in _REFUSES_THE_KEY:
            raise KeyRefused(
                f"the router would send the key of {self.spec.gang_key_file}, but {url} refuses it (HTTP"
                f" {answer.status}): it still has the key that it was started with; its entry was left as it is",
                where=self.spec.node.name,
                fix="put that key into the file again, or give the gang the new one with"
                " `l40s-deploy up --model NAME --gang GANG`",
            )

    def _key_of_gangs(self) -> dict[str, str]:
        """What the router sends to a gang in place of its clients' key, where it asks them for one."""
        return {"api_key": gang_key} if (gang_key := _key(self.spec.gang_key_file, "gangs")) else {}

    def _wait_for_health(self, at: str) -> None:
        what, end = f"checks the health of gangs at {at}", time.monotonic() + TAKE_IN_S
        while True:
            (answer,) = ask_from(self.fleet, self.spec.node.name, [HttpRequest(url=at, timeout_s=HEALTH_S)])
            if answer.status == HTTPStatus.OK:
                return
            if answer.status == HTTPStatus.NOT_FOUND:
                failure = self._trouble(f"{what}, but this engine has no such path", answer)
                failure.fix = f"{_ANEW} makes it use the right path"
                raise failure
            if time.monotonic() > end:
                raise self._trouble(f"{what}, without success within {TAKE_IN_S:.0f} s", answer)
            time.sleep(POLL_S)

    def take_out(self, url: str) -> None:
        """Have no new request go there; those that run are not touched."""
        for worker in self.workers():
            if worker.url == url:
                self.ask("DELETE", f"/workers/{quote(worker.id, safe='')}")
        if not self._until(lambda: all(worker.url != url for worker in self.workers()), TAKE_OUT_S):
            raise self._trouble(f"does not remove {url}", HttpAnswer())

    def ask(self, method: str, path: str, body: object = None) -> HttpAnswer:
        """One request to the router's own interface, made on its host."""
        return ask_router(self.fleet, self.spec, method, path, body, timeout_s=ROUTER_ASK_S)

    def _until(self, done: Callable[[], bool], deadline_s: float) -> bool:
        end = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def _trouble(self, what: str, answer: HttpAnswer) -> NodeError:
        status = f" (HTTP {answer.status})" if answer.status else ""
        return NodeError(
            f"the router {what}{status} {(answer.error or answer.body)[:200]}".strip(),
            where=self.spec.node.name,
            fix="run `l40s-deploy router up`, which starts it unless it serves; read its log with"
            f" `l40s-deploy logs {ROUTER_GANG}`",
        )


def wanted_router(inventory: Inventory) -> RouterSpec:
    """The inventory's router; raises InputError if it has none."""
    if inventory.router is None:
        raise InputError(
            "has no router, so requests cannot be sent to another gang",
            where=inventory.path,
            fix="add a group `router` with one host beside `gangs` (inventory/reference.yml shows it)",
        )
    return inventory.router


@contextmanager
def serving_router(spec: RouterSpec | None) -> Iterator[Router | None]:
    """The router, where one serves."""
    if spec is None:
        yield None
        return
    with Router(spec) as router:
        yield router if router.view().serves else None


def router_state(inventory: Inventory) -> RouterState:
    """Look at the router."""
    with Router(wanted_router(inventory)) as router:
        state = router.state()
    return replace(state, nobodys=nobodys(inventory, state.workers))


def nobodys(inventory: Inventory, workers: Iterable[Worker]) -> frozenset[str]:
    stated = {node.stated_url for node in inventory.nodes}
    left = {worker.url for worker in workers if worker.url not in stated}
    if not left:
        return frozenset()
    with Fleet(inventory.nodes) as fleet:
        views = see(fleet, inventory.gangs, patience=StragglerWait())
    known = {view.service_url.rstrip("/") for view in views}
    return frozenset(url for url in left if url not in known)


def start_router(
    inventory: Inventory, watcher: Watcher, *, command: str, timeout_s: float = ROUTER_START_S, ours: str = ""
) -> RouterState:
    """Have the router running, with every gang that serves behind it; one that serves is left alone.

    timeout_s: for its own start; ours: as of `_not_changed_by_others`.

    Raises why a gang could not be taken in once the others are.
    """
    with Router(wanted_router(inventory)) as router, Fleet(inventory.nodes) as fleet:
        now = router.view()
        refuse_elsewhere([now])
        gangs = see(fleet, inventory.gangs)
        wanted = _start(router, inventory, gangs)
        if not now.serves:
            _refuse_expired(router.spec)
            _refuse_two_keys(router.spec, wanted)
            with GangLock(router.fleet, router.gang, command):
                now = router.view()  # one that is starting is waited for, whatever its settings
                start = _start(router, inventory, gangs, plan_id=now.plan_id) if now.running else wanted
                raise_all(router.fleet, [start], watcher, timeout_s=timeout_s)
            gangs = see(fleet, inventory.gangs)  # one that became ready meanwhile found no router
        at = installed_for(router)
        suits = router.view().plan_id in (wanted.plan_id, _start_of(router, words.ANY_HEALTH, at).plan_id)
        if not suits:
            watcher.step(ROUTER_GANG, f"its settings differ from the current configuration. Apply them: {_ANEW}")
        failure = next(iter(take_in_all(router, _not_changed_by_others(router, gangs, watcher, ours)).values()), None)
        if failure is None:
            return router.state()
        if not suits:
            failure.fix = f"it checks the gangs' health at a path that some gangs may not have: {_ANEW} fixes that"
        raise failure


def raise_router(router: Router, inventory: Inventory, watcher: Watcher) -> GangView:
    """Start a router of which nothing is left, and whose lock is held, with every gang that serves behind it. Raises as
    `up` does; why a gang could not be taken in is said."""
    with Fleet(inventory.nodes) as fleet:
        _refuse_expired(router.spec)
        gangs = see(fleet, inventory.gangs, patience=StragglerWait())
        start = _start(router, inventory, gangs)
        _refuse_two_keys(router.spec, start)
        raise_all(router.fleet, [start], watcher, timeout_s=ROUTER_START_S)
        take_in_serving(router, fleet, inventory, watcher)
    return router.view()


def take_in_all(router: Router, gangs: Iterable[GangView]) -> Mapping[str, DeployError]:
    """Have requests go to every gang that serves; by its name, why one could not be taken in."""
    serving = [view for view in gangs if view.serves]
    mixed = would_mix(router, serving)
    tried = {view.name: mixed.get(view.name) or why_not_in(router, view, serving) for view in serving}
    return {name: failure for name, failure in tried.items() if failure is not None}


def _not_changed_by_others(
    router: Router, gangs: Sequence[GangView], watcher: Watcher, ours: str
) -> Sequence[GangView]:
    """Without those that another command takes out, or starts, by its claim on the router's host: it adds them again,
    and one that drains must get no requests. ours: the token of this command's claim, '' for none."""
    kept = shown_locks(router.fleet, [replace(router.gang, name=CLAIM)]).values.values()
    holders = [answer.held for answer in kept if answer.held is not None and not answer.held.stale]
    theirs = {name: holder for holder in holders if holder.token != ours for name in (holder.why or "").split(", ")}
    for view in gangs:
        if view.serves and (holder := theirs.get(view.name)):
            watcher.step(view.name, f"not added to the router: {holder.name} changes it with `{holder.command}`")
    return [view for view in gangs if view.name not in theirs]


def would_mix(router: Router, serving: Sequence[GangView]) -> dict[str, DeployError]:
    """By its name, why a gang can't join others behind a router that does not look at models."""
    models = {view.name: view.model for view in serving}
    if len(set(models.values())) < 2 or router.looks_at_models():
        return {}
    behind = {worker.url for worker in router.workers()}
    first = next((view for view in serving if view.service_url in behind), serving[0])
    return {
        view.name: mixed_models(router.spec, view.name, {first.name: first.model, view.name: view.model})
        for view in serving
        if view.model != first.model and view.service_url not in behind
    }


def mixed_models(spec: RouterSpec, gang: str, models: Mapping[str, str]) -> FindingsError:
    """Why a gang can't serve its model behind this router. models: by gang"""
    served = ", ".join(f"{name}: {model}" for name, model in models.items())
    return FindingsError(
        f"ROUTER-MODEL-MIXED: the router on {spec.node.name} is {words.SGLANG_ROUTER.name}, which does not look at the"
        f" model that a request names: gangs with different models ({served}) would answer for each other",
        where=f"gang {gang}",
        fix=f"install {words.SMG.name} with `l40s-deploy prepare --tags router_env`, then run {_ANEW} which takes its"
        " clients some seconds",
    )


def why_not_in(router: Router, view: GangView, serving: Sequence[GangView]) -> DeployError | None:
    """Have requests go to this gang; why that could not be done, or not by all of its names. serving: all that serve"""
    aliases = router.spec.aliases.get(view.name, ())
    double = sorted({*aliases} & _names_of_others(router.spec, view, serving))
    if not view.service_url:
        why = next((words for words in view.remarks if DISAGREES in words), "where it serves is not known")
        fix = f"set l40s_address of its nodes, or look at that node: `l40s-deploy status {view.name}`"
        return NodeError(f"{why}; it was not added to the router", where=f"gang {view.name}", fix=fix)
    try:
        router.take_in(view.service_url, view.run_id or "", () if double else aliases)
    except DeployError as failure:
        return failure
    return _two_models(view, double) if double else None


def _names_of_others(spec: RouterSpec, view: GangView, serving: Iterable[GangView]) -> set[str]:
    """By what gangs that serve another model are asked for."""
    others = [other for other in serving if other.model != view.model]
    return {name for other in others for name in (other.model, *spec.aliases.get(other.name, ()))}


def _two_models(view: GangView, names: Sequence[str]) -> FindingsError:
    return FindingsError(
        f"{', '.join(names)} would name two models, {view.model} and another gang's; it is in the router by its model's"
        " name alone",
        where=f"gang {view.name}: l40s_aliases",
        fix="let each alias name one model, then run l40s-deploy router up",
    )


def take_in_serving(router: Router, fleet: Fleet, inventory: Inventory, watcher: Watcher, *, ours: str = "") -> Serving:
    """Have requests go to every gang of the inventory that serves, one that came up without the router too.

    ours: as of `_not_changed_by_others`. Where they go now; why one could not be taken in is said.
    """
    serve = [view for view in see(fleet, inventory.gangs) if view.serves]
    views = _not_changed_by_others(router, serve, watcher, ours)
    failures = take_in_all(router, views)
    say_failures(failures, watcher)
    return serving_of(router, serve, [view for view in views if view.name not in failures])


def serving_of(router: Router, known: Iterable[GangView], chosen: Sequence[GangView]) -> Serving:
    """What each of the chosen gangs serves, and by address what the router sends requests to beside those that are
    known: gangs that this inventory does not have, or calls otherwise.

    That is the model by whose name the router sends a gang requests, which a flag may have changed; else the profile's.
    """
    workers = {worker.url: worker for worker in router.workers() if worker.healthy}
    models = {url: next((model.name for model in worker.models), "") for url, worker in workers.items()}
    told = {url: name for url, name in models.items() if name != UNKNOWN_MODEL}
    ours = {view.service_url.rstrip("/") for view in known}
    others = {url: told.get(url, "") for url in workers if url not in ours}
    return {**{view.name: told.get(view.service_url.rstrip("/")) or view.model for view in chosen}, **others}


def stop_router(
    inventory: Inventory, *, command: str, now: bool = False, timeout_s: float = STOP_S
) -> tuple[StopResult, ...]:
    """Stop it; requests that run get up to 60 s. timeout_s: how long its end is waited for. Raises RunsElsewhere."""
    with Router(wanted_router(inventory)) as router, ExitStack() as opened:
        refuse_elsewhere([router.view()], to_end=True)
        opened.enter_context(GangLock(router.fleet, router.gang, command))
        return stop_gangs(router.fleet, [router.gang], now=now, ordered=True, timeout_s=timeout_s)


def would_start_router(inventory: Inventory) -> tuple[GangRehearsal, ...]:
    """What `start_router` would do. Raises InputError where the inventory has no router, and Unreachable."""
    with Router(wanted_router(inventory)) as router, Fleet(inventory.nodes) as fleet:
        state = router.state()
        everybody_answers([state.view])
        gangs = see(fleet, inventory.gangs)
        running = state.view.running
        then = state.view.plan_id if running else _start(router, inventory, gangs).plan_id
    behind = {worker.url for worker in state.workers}
    added = [view.name for view in gangs if view.serves and view.service_url not in behind]
    joining = f"{', '.join(added)} would be added" if added else "no gang would be added"
    what = "is running and would be left unchanged" if running else "would be started"
    return (would(state.view, then, f"{what}; {joining}"),)


def would_stop_router(inventory: Inventory) -> tuple[GangRehearsal, ...]:
    """What `stop_router` would do. Raises InputError where the inventory has no router."""
    with Router(wanted_router(inventory)) as router:
        return would_stop(router.fleet, [router.gang], now=False)


def enrol(inventory: Inventory, views: Iterable[GangView], watcher: Watcher, *, command: str, ours: str = "") -> None:
    """After an `up`: the router runs and knows the gangs that are ready. Nothing where there is no router.

    ours: as of `_not_changed_by_others`.
    """
    if inventory.router is None or not any(view.service_healthy for view in views):
        return
    watcher.step(ROUTER_GANG, "starting, and adding the gangs that became ready")
    start_router(inventory, watcher, command=command, ours=ours)


def rejoin(inventory: Inventory, views: Iterable[GangView], watcher: Watcher) -> None:
    """After a `restart`: add these gangs to the router, if one serves; a failure is only reported."""
    if inventory.router is None:
        return
    with Router(inventory.router) as router:
        now = router.view()
        lost = next((node.error for node in now.nodes if node.error is not None), None)
        if lost is not None:
            say_failures({ROUTER_GANG: lost}, watcher)
        if now.serves:
            say_failures(take_in_all(router, views), watcher)


def say_failures(failures: Mapping[str, DeployError], watcher: Watcher) -> None:
    """What went wrong beside the work, by the gang's name."""
    for name, failure in failures.items():
        watcher.step(name, f"{failure.where}: {failure.what}")


def withdraw(operation: Operation, gangs: Iterable[str]) -> Serving:
    """Before a `down`: no new request goes to these gangs. Nothing where there is no router or it does not run.

    By its name, the model of each of those in the router after which no healthy one is left there that serves it.
    Raises Unreachable where the router's host can't be asked: its entries stay.
    """
    inventory = operation.inventory
    names = {gang.name for gang in chosen_gangs(inventory, tuple(gangs))}
    if inventory.router is None:
        return {}
    with Router(inventory.router) as router:
        now = router.view()
        everybody_answers([now])
        if not now.serves:
            return {}
        views = see(operation.fleet, inventory.gangs, patience=StragglerWait())
        seen = with_addresses(inventory, views, router.workers())
        serving = behind_router(router, seen)
        for view in seen:
            if view.name in names:
                router.take_out(view.service_url)
        unread = {view.name for view in views if not view.service_url}
        for view in seen:
            if view.name in names & unread:
                _let_run(router, view.service_url)
        lost = lost_models(names, serving)
        return {name: model for name, model in serving.items() if name in names and model in lost}


def with_addresses(inventory: Inventory, views: Sequence[GangView], entered: Iterable[Worker]) -> list[GangView]:
    """Those of which it is known where they serve, or may; entered: the router's workers."""
    specs = {gang.name: gang for gang in inventory.gangs}
    taken = {view.service_url.rstrip("/") for view in views}
    by_run = {worker.run: worker.url for worker in entered if worker.run and worker.url not in taken}
    findings = [
        replace(
            view, service_url=view.service_url or _url_unread(specs[view.name], view) or by_run.get(view.run_id, "")
        )
        for view in views
    ]
    return [view for view in findings if view.service_url]


def _let_run(router: Router, url: str) -> None:
    """Wait until a gang that was taken out has no request any more, for DRAIN_S at most: nobody reads its leader, which
    drains where it is told to stop, so that its engine is asked from the router's host."""
    end, quiet = time.monotonic() + DRAIN_S, 0
    asks = [HttpRequest(url=f"{url}{path}", timeout_s=HEALTH_S) for path in load_paths()]
    while quiet < 2 and time.monotonic() < end:
        left = requests_left(ask_from(router.fleet, router.spec.node.name, asks))
        if left is None:
            return
        quiet = 0 if left else quiet + 1
        time.sleep(POLL_S)


def behind_router(router: Router, known: Sequence[GangView]) -> Serving:
    """Everybody whom the router counts as healthy. known: the inventory's gangs with their addresses."""
    healthy = {worker.url for worker in router.workers() if worker.healthy}
    return serving_of(router, known, [view for view in known if view.service_url.rstrip("/") in healthy])


def _url_unread(gang: GangSpec, view: GangView) -> str:
    """Where a gang may serve whose agents have lost their files, as the inventory states it; '' where it does not, and
    for other gangs."""
    if not any(isinstance(node.error, WithoutFiles) for node in view.nodes):
        return ""
    return gang.url or gang.leader.stated_url


def requests_left(answers: Iterable[HttpAnswer]) -> int | None:
    """Requests that an engine has, by the first of its answers to `load_paths` that tells; None where none does."""
    counts = (running_requests(answer.body) for answer in answers if answer.ok)
    return next((count for count in counts if count is not None), None)


def wait_until_drained(fleet: Fleet, gang: GangSpec, url: str) -> None:
    """Wait until two checks in a row see no request: one may be in flight when the router removes the gang.

    Raises GangFailed after `DRAIN_S`; nothing was stopped then. An engine that does not tell is left to its own drain.
    """
    end = time.monotonic() + DRAIN_S
    quiet = 0
    while quiet < 2:
        asks = [HttpRequest(url=f"{url}{path}") for path in load_paths()]
        left = requests_left(ask_from(fleet, gang.leader.name, asks))
        if left is None:
            return
        quiet = 0 if left else quiet + 1
        if time.monotonic() > end:
            raise GangFailed(
                f"still has running requests {DRAIN_S:.0f} s after it was removed from the router; nothing was stopped",
                where=f"gang {gang.name}",
                fix=f"run it again to wait on, or abort them with `l40s-deploy restart {gang.name} --now`",
            )
        time.sleep(POLL_S)


def _health_path_of(staged: StagingRequest | None) -> str:
    return "" if staged is None else staged.watch.http.get(words.WORKERS_HEALTH, "")


def _health_path(router: Router, inventory: Inventory, gangs: Sequence[GangView]) -> str:
    """By the versions of the gangs' stacks; /health where an engine that serves lacks what its version should have."""
    family = newest()
    path = words.health_path(list(_engines(inventory, gangs)), family.engine(family.versions[-1]))
    urls = [view.service_url for view in gangs if view.serves and view.service_url]
    if path == words.ANY_HEALTH or not urls:
        return path
    asks = [HttpRequest(url=f"{url}{path}", timeout_s=ROUTER_ASK_S) for url in urls]
    answers = ask_from(router.fleet, router.spec.node.name, asks)
    return words.ANY_HEALTH if any(answer.status == HTTPStatus.NOT_FOUND for answer in answers) else path


def _engines(inventory: Inventory, gangs: Iterable[GangView]) -> Iterator[Engine]:
    """Of the stacks that the gangs run, and that the inventory names for gangs that run none now. A stack whose file is
    gone has none: what runs by it is asked."""
    for name in {node.stack for node in inventory.nodes if node.stack}:
        with suppress(InputError):
            yield engine_of(load_stack(name))
    for name in {view.stack for view in gangs}:
        with suppress(InputError):
            yield engine_of(reported_stack(name))


def _start(router: Router, inventory: Inventory, gangs: Sequence[GangView], *, plan_id: str = "") -> Staged:
    """What a start would carry out now."""
    at = installed_for(router)
    return _start_of(router, _health_path(router, inventory, gangs), at, plan_id=plan_id)


def _start_of(router: Router, health_path: str, at: words.InstalledRouter, *, plan_id: str = "") -> Staged:
    """plan_id: '' for its own, which is the same for every start with the same settings: the admin key, generated for
    each, is no part of it."""
    spec, front = router.spec, _front(router.spec)
    tls = spec.tls_cert is not None
    argv = words.command(
        at,
        spec.node.http_host,
        spec.port,
        spec.metrics_port,
        health_path,
        policy=spec.policy,
        tls=tls,
        max_requests=spec.max_requests,
    )
    plan_id = plan_id or short_digest([*argv, fingerprint(front.api_key), front.certificate, fingerprint(front.key)])
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
        request_limit=spec.max_requests,
        secrets=_secrets(replace(front, admin_key=secrets.token_hex(24))),
        launch_script=words.launch_script(at.release, argv),
    )
    return Staged(gang=router.gang, requests={spec.node.name: request}, document={"plan_id": plan_id, "argv": argv})


def _front(spec: RouterSpec) -> words.Front:
    """What guards its port, as the controller's files say now; without an admin key, which each start makes."""
    tls = _certified_key(spec)
    return words.Front(
        api_key=_key(spec.node.api_key_file, ROUTER_GANG),
        certificate=tls.certificate if tls else "",
        key=tls.key if tls else "",
    )


def _certified_key(spec: RouterSpec) -> CertifiedKey | None:
    if spec.tls_cert is None or spec.tls_key is None:
        return None
    cert, key = (Path(file).expanduser() for file in (spec.tls_cert, spec.tls_key))
    return read_certified_key(cert, key, where=f"inventory: {spec.node.name}: l40s_router_tls_cert")


def _refuse_expired(spec: RouterSpec) -> None:
    tls = _certified_key(spec)
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
    asked, gangs = _key(spec.node.api_key_file, ROUTER_GANG), _key(spec.gang_key_file, "gangs")
    return bool(asked and gangs and asked != gangs)


def _refuse_two_keys(spec: RouterSpec, start: Staged) -> None:
    """smg passes the key that a client sends on to the gang, whatever key it was given for the gang itself."""
    if words.looks_at_models(start.requests[spec.node.name].stack) and _two_keys(spec):
        raise InputError(
            "the router's key differs from the gangs', and it passes its clients' key on to them: every request would"
            " be refused with HTTP 401",
            where=f"inventory: {spec.node.name}: l40s_api_key_file",
            fix="name one file for the group `router` and for the gangs",
        )


def _key(file: str | None, whose: str) -> str:
    return "" if file is None else read_api_key(Path(file).expanduser(), where=f"inventory: {whose}: l40s_api_key_file")


def _secrets(front: words.Front) -> Secrets:
    """The agent asks its router as its administrator does."""
    return Secrets(
        files=tuple(SecretFile(name=name, text=text) for name, text in front.files(template(STUB_FILE))),
        redact=tuple(secret for secret in (front.admin_key, front.api_key) if secret),
        authorization=f"Bearer {front.admin_key}",
    )
