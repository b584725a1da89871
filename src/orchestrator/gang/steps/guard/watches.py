"""What a guard knows of a gang beside its agents' reports: silence of all its nodes, its place in the router, and what
the doctor would refuse a restart for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from orchestrator.gang.overview import RouterGlance
from orchestrator.gang.remarks import of_router_entry
from orchestrator.gang.steps.router.host import router_gang
from orchestrator.gang.steps.status.health import health
from orchestrator.gang.steps.status.overview import glance
from orchestrator.gang.view import ENDED, UNHEARD, GangView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, RouterSpec
from orchestrator.protocol.errors import DeployError
from orchestrator.remote.fleet import Fleet

HEALTH_EVERY_S = 60.0
ROUTER_EVERY_S = 3.0
ENTRY_S = 4.0
"""A gang that is out of the router for two looks at it stays out: shorter is a router that looks again itself."""


def heard(seen: GangView, silent_s: float, lease_s: float) -> GangView:
    """The view; UNHEARD where no node has answered for a lease: then its ranks have ended, or nobody knows."""
    over = seen.state is GangState.UNKNOWN and silent_s >= lease_s
    return replace(seen, trouble=UNHEARD) if over else seen


def ended(seen: GangView, is_a_verbs: Callable[[], bool]) -> GangView:
    """The view; ENDED where its run is over without a failure, an order or a command: a host that shuts down, or
    whoever ends an agent, ends its gang in good order.

    is_a_verbs: whether a command works on it, or has left it begun."""
    over = seen.state is GangState.ABSENT and bool(seen.run_id) and not seen.ordered
    return replace(seen, trouble=ENDED) if over and not is_a_verbs() else seen


@dataclass
class RouterWatch:
    """Asks the router for its entries, on a thread of its own: a host that is gone delays no gang's look."""

    spec: RouterSpec | None
    _glance: RouterGlance | None = None
    _out_since: dict[str, float] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self, *, once: bool) -> None:
        """Ask again and again until `end`; with once, just now."""
        if self.spec is None:
            return
        if once:
            self._ask(self.spec)
            return
        threading.Thread(target=self._watch, args=(self.spec,), daemon=True).start()

    def end(self) -> None:
        """Ask no more."""
        self._over.set()

    def _watch(self, spec: RouterSpec) -> None:
        while not self._over.is_set():
            with contextlib.suppress(Exception):  # whatever a router answers, it is asked again
                self._ask(spec)
            self._over.wait(ROUTER_EVERY_S)

    def _ask(self, spec: RouterSpec) -> None:
        try:
            with Fleet(router_gang(spec).nodes) as fleet:
                self._glance = glance(fleet, spec)
        except DeployError as failure:
            self._glance = RouterGlance(url=spec.url, node=spec.node.name, error=failure)

    def finding(self, view: GangView, now: float, is_worked_on: Callable[[], bool]) -> tuple[Finding, ...]:
        """That this gang serves and gets no requests, once that has lasted. A router that is down is a message of its
        own, and a gang that a command takes out is that command's."""
        seen = self._glance
        place = None if seen is None or seen.workers is None else seen.place(view.service_url)
        findings = of_router_entry(view, place)
        if not findings:
            self._out_since.pop(view.name, None)
            return ()
        if is_worked_on():
            self._out_since[view.name] = now
            return ()
        return findings if now - self._out_since.setdefault(view.name, now) >= ENTRY_S else ()


@dataclass
class HealthWatch:
    """Asks the doctor about a gang that serves once a minute, beside the looks. What he said of one run is forgotten
    with it: the next was started with his consent."""

    inventory: str
    findings: tuple[Finding, ...] = ()
    _asked_at: float | None = None
    _asking: threading.Thread | None = None
    _run: str = ""

    def ask_if_due(self, gang: GangSpec, run_id: str, now: float, *, wait: bool) -> None:
        """Have it asked, and go on. wait: for the answer."""
        if self._run not in ("", run_id):
            self._asked_at, self.findings = now, ()
        self._run = run_id
        busy = self._asking is not None and self._asking.is_alive()
        if busy or (self._asked_at is not None and now - self._asked_at < HEALTH_EVERY_S):
            return
        self._asked_at = now
        self._asking = threading.Thread(target=self._ask, args=(gang, run_id), daemon=True)
        self._asking.start()
        if wait:
            self._asking.join()

    def _ask(self, gang: GangSpec, run_id: str) -> None:
        with contextlib.suppress(Exception):  # what could not be asked is unknown, and stays as it was
            findings = health(self.inventory, gang)
            if run_id == self._run:
                self.findings = findings
