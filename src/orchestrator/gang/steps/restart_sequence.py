"""The steps of every restart, whichever verb it is for: checked while it serves, out of the router, drained, stopped,
worked on, started, in the router again; or back on the plan that it had.

A verb says what its gangs are to run and in which order: `restart.VERBS`, and `up` for a changed plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.gang.steps import raising
from orchestrator.gang.steps.down import stop
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.replay import Staged, facts_of_now
from orchestrator.gang.steps.router.routing import Router, rejoin, say_failures, take_in_all, wait_until_drained
from orchestrator.gang.steps.start_time import downtime_words
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError, Detached, Undone
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.remote.fleet import Fleet, StragglerWait


class RestartStep(Enum):
    """Where a restart is. Before STOP nothing has changed but for the router; from then on the gang is down."""

    ASIDE = "aside"
    STOP = "stop"
    WORK = "work"
    START = "start"
    BACK = "back"


_DOWN = (RestartStep.STOP, RestartStep.WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRestart:
    """One gang's part.

    gang:   where it runs now
    view:   as it was seen before
    before: what its nodes have staged now; None where they do not have the same plan
    check:  what it is to run, as the checks of its start judge it
    start:  the same, to be started
    """

    gang: GangSpec
    view: GangView
    before: Staged | None
    check: Staged
    start: raising.Rising

    @property
    def name(self) -> str:
        """Of the gang."""
        return self.gang.name

    @property
    def url(self) -> str:
        """Where it serves before."""
        return (self.before.service_url if self.before else "") or self.view.service_url

    def downtime(self, *, now: bool = False) -> str:
        """How long it will not serve, as text. now: it does not drain by itself when it is stopped."""
        return downtime_words(self.view, self.before.drain_s if self.before and not now else 0.0)


def _nothing(_: object) -> None:
    """No check; whatever is ready serves."""


@dataclass(kw_only=True)
class RestartSequence:
    """Restarts one after the other, as parts of one operation whose locks are held.

    router:  None where nothing sends requests elsewhere meanwhile
    together: all at a time, whose running requests the engines alone wait for; else one after the other, each once its
             requests are answered, for up to `DRAIN_S`
    now:     running requests are ended
    done:    what was done to a gang afterwards, as text
    returns: a gang that does not come up, or is undone, starts what it ran before: as text; '': it stays as it ended
    check:   raises what forbids the start, while these gangs serve; asked where another restart has passed since the
             command ran its checks of all
    tells:   of each gang how long it will not serve, before it is taken down
    work:    on the nodes of a gang, one after the other, between stop and start; None for none
    accept:  raises where what came up is not what was wanted
    """

    inventory: Inventory
    fleet: Fleet
    router: Router | None
    watcher: Watcher
    operation: Operation
    done: str
    timeout_s: float
    together: bool = False
    now: bool = False
    returns: str = ""
    undo_on_interrupt: bool = False
    before_go: raising.BeforeGo | None = None
    check: Callable[[Sequence[GangRestart]], None] = _nothing
    tells: bool = False
    work: Callable[[Staged], None] | None = None
    accept: Callable[[Sequence[GangView]], None] = _nothing
    views: list[GangView] = field(default_factory=list)
    """Of the gangs that serve again."""

    def run(self, gangs: Sequence[GangRestart]) -> tuple[GangView, ...]:
        """Raises what its steps raise, with what became of the gangs. A gang that serves is in the router then."""
        begun = 0
        for batch in [gangs] if self.together else [[one] for one in gangs]:
            if begun:
                self.check(batch)
            begun += len(batch)
            self._restart(batch, gangs[begun:])
        return tuple(self.views)

    def _restart(self, gangs: Sequence[GangRestart], later: Sequence[GangRestart]) -> None:
        names = [one.name for one in gangs]
        step = RestartStep.ASIDE
        self._tell(gangs)
        self.operation.turn(names)
        try:
            self._aside(gangs)
            step = RestartStep.STOP
            stop(self.fleet, [one.gang for one in gangs], self.watcher, now=self.now)
            step = RestartStep.WORK
            self._work_on(gangs)
            step = RestartStep.START
            views = self._start(gangs)
            step = RestartStep.BACK
            self._back(gangs, views)
        except DeployError as failure:
            self._recover(gangs, step)
            if words := self._outcome(gangs, later, step):
                failure.what += f"\n    {words}"
            raise
        except BaseException as ended:
            if step in _DOWN and isinstance(ended, KeyboardInterrupt) and not isinstance(ended, Detached):
                self.operation.stopped_by_hand(names)
            self._recover(gangs, step)
            if words := self._undone(gangs, later, step, ended):
                self.watcher.step(", ".join(names), words)
            raise
        self.operation.finished(names)
        self.views += views

    def _tell(self, gangs: Sequence[GangRestart]) -> None:
        for one in gangs if self.tells else ():
            self.watcher.step(one.name, one.downtime(now=self.now))

    def _work_on(self, gangs: Sequence[GangRestart]) -> None:
        if self.work is not None:
            for one in gangs:
                self.work(one.check)

    def _aside(self, gangs: Sequence[GangRestart]) -> None:
        if self.now or self.together:
            take_out(self.router, gangs, self.watcher)
        else:
            set_aside(self.fleet, self.router, gangs, self.watcher)

    def _start(self, gangs: Sequence[GangRestart]) -> tuple[GangView, ...]:
        raised = raising.raise_all(
            self.fleet,
            [one.start for one in gangs],
            self.watcher,
            timeout_s=self.timeout_s,
            undo_on_interrupt=self.undo_on_interrupt,
            before_go=self.before_go,
        )
        self.accept(raised.views)
        return raised.views

    def _back(self, gangs: Sequence[GangRestart], views: Sequence[GangView]) -> None:
        if self.router is None:
            rejoin(self.inventory, views, self.watcher)
        else:
            put_back(self.router, {one.name: one.check.service_url or one.url for one in gangs}, self.watcher)

    def _now(self, gangs: Sequence[GangRestart]) -> tuple[GangView, ...]:
        return see(self.fleet, [one.gang for one in gangs], patience=StragglerWait())

    def _recover(self, gangs: Sequence[GangRestart], step: RestartStep) -> None:
        """Requests go to whichever of them serves; one that was never stopped is as it was."""
        with suppress(DeployError):
            if step is RestartStep.ASIDE:
                self.operation.untouched([one.name for one in gangs])
            elif self.router is not None:
                say_failures(take_in_all(self.router, self._now(gangs)), self.watcher)

    def _outcome(self, gangs: Sequence[GangRestart], later: Sequence[GangRestart], step: RestartStep) -> str:
        """What became of these gangs after a failure, and of the others, as text."""
        not_done = [one.name for one in later]
        if self.work is not None:
            return "; ".join(how_to_go_on(one.name, not_done, step) for one in gangs)
        others = [f"{self.done}: {', '.join(view.name for view in self.views)}"] if self.views else []
        others += [f"not {self.done}: {', '.join(not_done)}"] if later else []
        if self.returns and step not in (RestartStep.ASIDE, RestartStep.STOP):
            others = [*map(self._go_back, gangs), *others]
        elif others or self.returns:
            others.insert(0, f"it stopped at {', '.join(one.name for one in gangs)}")
        return "; ".join(others)

    def _undone(
        self, gangs: Sequence[GangRestart], later: Sequence[GangRestart], step: RestartStep, ended: BaseException
    ) -> str:
        """What became of them after an interruption, as text."""
        if self.work is not None:
            not_done = [one.name for one in later]
            return "; ".join(how_to_go_on(one.name, not_done, step, interrupted=True) for one in gangs)
        if self.returns and self.undo_on_interrupt and step is not RestartStep.ASIDE:
            return "; ".join(map(self._go_back, gangs))
        if step in _DOWN or isinstance(ended, Undone):
            with suppress(DeployError):
                return "; ".join(
                    f"{view.name} {_is_down(view)}; continue: l40s-deploy up {view.name}" for view in self._now(gangs)
                )
        return ""

    def _go_back(self, one: GangRestart) -> str:
        """Start what it ran before again; returns the outcome as text."""
        if one.before is None:
            return f"{one.name} is stopped: its nodes had no common plan to return to"
        self.watcher.step(one.name, f"restoring plan {one.before.plan_id}")
        try:
            (view,) = self._now([one])
            raising.everybody_answers([view])
            if view.running:  # still draining, if the stop was interrupted
                stop(self.fleet, [one.gang], self.watcher, now=True)
            start = one.before.rising(going_back=True, of_now=facts_of_now(self.fleet, self.watcher))
            raising.raise_all(self.fleet, [start], self.watcher, timeout_s=self.timeout_s)
            put_back(self.router, {one.name: one.before.service_url}, self.watcher)
        except DeployError as second:
            return f"restoring plan {one.before.plan_id} failed too: {second.where}: {second.what}"
        self.operation.finished([one.name])
        return f"{one.name} is back on {self.returns} {one.before.plan_id}"


def _is_down(view: GangView) -> str:
    return "still serves" if view.serves else "is stopping" if view.running else "is stopped"


def how_to_go_on(name: str, later: Sequence[str], step: RestartStep, *, interrupted: bool = False) -> str:
    """After work on a gang's nodes that ended early, as text; '' where nothing has changed."""
    if step is RestartStep.ASIDE:
        return ""
    words = f"{name} is stopped; start it again with `l40s-deploy restart {name}`"
    if step is RestartStep.START and interrupted:
        return f"{name} is starting; `l40s-deploy up` adds it to the router"
    if step is RestartStep.BACK:
        words = f"{name} serves again, but may not be in the router; `l40s-deploy router up` adds it"
    if not later:
        return words
    return f"{words}; not done: continue with `l40s-deploy restart --maintenance {' '.join(later)}`"


def set_aside(fleet: Fleet, router: Router | None, gangs: Sequence[GangRestart], watcher: Watcher) -> None:
    """Have no request go there, and wait until none runs. What ends it puts them back: nothing was stopped."""
    now = see(fleet, [one.gang for one in gangs], patience=StragglerWait())
    serving = [one for one, view in zip(gangs, now, strict=True) if view.service_healthy]
    try:
        take_out(router, gangs, watcher)
        for one in serving:
            watcher.step(one.name, "draining requests")
            wait_until_drained(fleet, one.gang, one.url)
    except BaseException:
        put_back(router, {one.name: one.url for one in serving}, watcher)
        raise


def take_out(router: Router | None, gangs: Sequence[GangRestart], watcher: Watcher) -> None:
    """Have no new request go there."""
    if router is None:
        return
    for one in gangs:
        watcher.step(one.name, "removing it from the router")
        router.take_out(one.url)


def put_back(router: Router | None, urls: dict[str, str], watcher: Watcher) -> None:
    """Have requests go there again, by gang."""
    if router is None:
        return
    for name, url in urls.items():
        watcher.step(name, "adding it to the router")
        router.take_in(url)
