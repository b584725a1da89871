"""The router on its host: looked at and configured over its own REST interface.

All HTTP goes through the node's verb `ask`: the router's host must reach the gangs, we need to reach only SSH.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from orchestrator.engines.serving import RUN_LABEL, UNKNOWN_MODEL, Worker, workers
from orchestrator.gang.steps.router.host import ask_from, ask_router, router_ask, router_gang, staged_router
from orchestrator.gang.steps.status.reports import request_keys, see
from orchestrator.gang.view import GangView
from orchestrator.loading.secret_file import read_api_key
from orchestrator.model.deadlines import HEALTH_S, ROUTER_ASK_S, TAKE_IN_S, TAKE_OUT_S
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import ROUTER_GANG, RouterSpec
from orchestrator.model.secret_text import fingerprint
from orchestrator.protocol.errors import Exit, NodeError
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet

POLL_S = 0.25
ANEW = "`l40s-deploy router down`, then `l40s-deploy router up`"
_ANSWERS_TO_A_KEY = "/v1/models"
"""Of every engine; it asks for the API key, which the paths for health do not."""
_ASKS_FOR_A_KEY = "/v1/chat/completions"
"""Of the router; its other paths ask its clients for none."""
_OF_NO_MODEL = {"model": "", "messages": []}
"""Refused by the router itself: no gang hears of it."""
_REFUSES_THE_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_ACCEPTED = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED)


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


class KeyNotPassed(KeyRefused):
    """A gang has a newer key than a router that passes its clients' key on: it would refuse every request."""


class Router:
    """A router that can be configured. fleet: of its host alone, as a node of `router_gang`; its owner closes it"""

    def __init__(self, spec: RouterSpec, fleet: Fleet) -> None:
        self.spec = spec
        self.gang = router_gang(spec)
        self.fleet = fleet

    def state(self) -> RouterState:
        """Look at its agent, and at its workers where it serves."""
        view = self.view()
        url = self.spec.url_of(view.told_url if view.running else "")
        return RouterState(view=view, url=url, workers=self.workers() if view.service_healthy else ())

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
        return _by_model(staged_router(self.fleet, self.spec))

    def take_in(self, url: str, run: str = "", aliases: Collection[str] = ()) -> None:
        """Have requests go there, those that name an alias too.

        Returns once the engine answers what the router asks for its health, and the router counts it as healthy: a new
        worker counts as healthy until the router's checks of it have failed. An entry that is there and that another
        command takes out meanwhile is left out: that command adds it again, and what drains must get no requests.

        run: of the gang, as `run_entry` names it. The router asks an engine for its model when it is added, and not
        again: one that was added for another run is added anew.
        """
        staged = staged_router(self.fleet, self.spec)
        by_model = _by_model(staged)
        run = run if by_model else ""
        was_there = self._entry(url, run)
        if path := _health_path_of(staged):
            self._wait_for_health(f"{url}{path}")
        end, done = time.monotonic() + TAKE_IN_S, False
        while not self._has(url, run):
            if was_there and not self._entry(url, run):
                return
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

    def _entry(self, url: str, run: str) -> bool:
        """Whether this run's gang has an entry, healthy or not."""
        return any(worker.url == url and run in ("", worker.run) for worker in self.workers())

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
        self._refuse_passed_key(url)
        labels = {"labels": {RUN_LABEL: run}} if run else {}
        body = {"url": url, **self._key_of_gangs(), **labels, **more}
        if known is None:
            answer = self.ask("POST", "/workers", body)
        else:
            answer = self.ask("PUT", f"/workers/{quote(known.id, safe='')}", body)
        if answer.status not in (*_ACCEPTED, HTTPStatus.CONFLICT):
            raise self._trouble(f"does not accept {url}", answer)
        return answer.status in _ACCEPTED

    def accepts_key(self, url: str) -> bool:
        """Whether this gang takes what the router would send to it from now on."""
        try:
            self.refuse_other_key(url)
        except KeyRefused:
            return False
        return True

    def refuse_other_key(self, url: str) -> None:
        """Raises where this gang refuses the key, or none, that the router would send to it from now on. Its entry
        stays as it is then: the key in that one may be the one that the gang has.

        Where the router asks its clients for a key and has none of its own for gangs, it passes theirs on.
        """
        key = self._key_of_gangs().get("api_key", "")
        if not key and self.spec.node.api_key_file is not None:
            return
        bearer = f"Bearer {key}" if key else ""
        asked = HttpRequest(url=f"{url}{_ANSWERS_TO_A_KEY}", authorization=bearer, timeout_s=HEALTH_S)
        (answer,) = ask_from(self.fleet, self.spec.node.name, [asked])
        if answer.status not in _REFUSES_THE_KEY:
            return
        sends, fix = f"the key of {self.spec.gang_key_file}", "put that key into the file again"
        if not key:
            sends, fix = "no key, since the inventory names none for gangs", "name its file as l40s_api_key_file again"
        raise KeyRefused(
            f"the router would send {sends}, but {url} refuses it (HTTP {answer.status}): it still has the key that it"
            " was started with; its entry was left as it is",
            where=self.spec.node.name,
            fix=f"{fix}, or give the gang the new one with `up --replace`",
        )

    def asks_for_another_key(self) -> bool:
        """Whether the running router refuses the gangs' key of now from its clients, whose key it passes on to gangs:
        it was started with another one."""
        key = self._key_of_gangs().get("api_key", "")
        if not key or not _by_model(staged_router(self.fleet, self.spec)):
            return False
        asked = router_ask("POST", _ASKS_FOR_A_KEY, _OF_NO_MODEL, timeout_s=ROUTER_ASK_S)
        asked = replace(asked, authorization=f"Bearer {key}")
        (answer,) = ask_from(self.fleet, self.spec.node.name, [asked], **request_keys(self.spec.node, ROUTER_GANG))
        return answer.status in _REFUSES_THE_KEY

    def refuse_last_key(self, urls: Collection[str]) -> None:
        """Raises where these gangs are the last ones that the running router can send requests to, and it passes
        another key on than they are about to get."""
        healthy = {worker.url for worker in self.workers() if worker.healthy}
        if healthy and healthy <= {*urls} and self.asks_for_another_key():
            raise self._not_passed(f"{', '.join(urls)} is the last that has that one, and was left as it is")

    def _refuse_passed_key(self, url: str) -> None:
        """Raises where this gang would refuse every client of the running router, though it accepts the file's key."""
        if self.asks_for_another_key() and self._asks_for_a_key(url):
            raise self._not_passed(f"{url} has the new one of {self.spec.gang_key_file} and was not added to it")

    def _not_passed(self, what: str) -> KeyNotPassed:
        return KeyNotPassed(
            f"the running router asks its clients for the key that it was started with, and passes it on: {what}",
            where=self.spec.node.name,
            fix=f"{ANEW}, which gives it the new key and takes its clients some seconds; then run the command again",
        )

    def _asks_for_a_key(self, url: str) -> bool:
        asked = HttpRequest(url=f"{url}{_ANSWERS_TO_A_KEY}", authorization="Bearer ", timeout_s=HEALTH_S)
        (answer,) = ask_from(self.fleet, self.spec.node.name, [asked])
        return answer.status in _REFUSES_THE_KEY

    def refuse_planned_key(self, planned: str | None, plan_id: str) -> None:
        """Raises where a gang that starts with this key would refuse what the router sends to it from now on.
        planned: its fingerprint, as the plan has it; None for a gang that asks for none."""
        key = self._key_of_gangs().get("api_key", "")
        passes_on = not key and self.spec.node.api_key_file is not None
        if not planned or passes_on or (key and fingerprint(key) == planned):
            return
        sends = f"the key of {self.spec.gang_key_file}" if key else "no key"
        raise KeyRefused(
            f"the router sends {sends} to gangs, but plan {plan_id} was started with another one: the router could not"
            " send it requests; nothing was stopped",
            where=self.spec.node.name,
            fix="make that key the one of l40s_api_key_file again, or start its model anew by `up --replace`",
        )

    def _key_of_gangs(self) -> dict[str, str]:
        """What the router sends to a gang in place of its clients' key, where it asks them for one."""
        return {"api_key": gang_key} if (gang_key := key_in(self.spec.gang_key_file, "gangs")) else {}

    def _wait_for_health(self, at: str) -> None:
        what, end = f"checks the health of gangs at {at}", time.monotonic() + TAKE_IN_S
        while True:
            (answer,) = ask_from(self.fleet, self.spec.node.name, [HttpRequest(url=at, timeout_s=HEALTH_S)])
            if answer.status == HTTPStatus.OK:
                return
            if answer.status == HTTPStatus.NOT_FOUND:
                failure = self._trouble(f"{what}, but this engine has no such path", answer)
                failure.fix = f"{ANEW} makes it use the right path"
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


def _by_model(staged: StagingRequest | None) -> bool:
    from orchestrator.engines import router as words  # what `status` does not need

    return staged is not None and words.looks_at_models(staged.stack)


def _health_path_of(staged: StagingRequest | None) -> str:
    from orchestrator.engines import router as words  # what `status` does not need

    return "" if staged is None else staged.watch.http.get(words.WORKERS_HEALTH, "")


def key_in(file: str | None, whose: str) -> str:
    return "" if file is None else read_api_key(Path(file).expanduser(), where=f"inventory: {whose}: l40s_api_key_file")
