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
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.replay import Staged
from orchestrator.gang.steps.router.routing import Router, rejoin, say_failures, take_in_all, wait_until_drained
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.steps.watcher import Watcher
from orchestrator.gang.steps.weights_ahead import weights_ahead
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

    @property
    def drain_s(self) -> float:
        """How long its engine drains by itself when it is stopped."""
        return self.before.drain_s if self.before else 0.0


def _nothing(_: object) -> None:
    """No check, no work, whatever is ready serves."""


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
    tell:    of each gang, before it is taken down
    work:    between stop and start
    accept:  raises where what came up is not what was wanted
    left:    after a failure, or an interruption (True): the outcome as text, instead of the usual words
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
    tell: Callable[[GangRestart], None] = _nothing
    work: Callable[[GangRestart], None] = _nothing
    accept: Callable[[Sequence[GangView]], None] = _nothing
    left: Callable[[GangRestart, RestartStep, bool], str] | None = None
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
        for one in gangs:
            self.tell(one)
        self.operation.turn(names)
        try:
            with weights_ahead(self.fleet, [] if self.now else [one.start.reads for one in gangs]):
                self._aside(gangs)
                step = RestartStep.STOP
                stop(self.fleet, [one.gang for one in gangs], self.watcher, now=self.now)
            step = RestartStep.WORK
            for one in gangs:
                self.work(one)
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
            if step in (RestartStep.STOP, RestartStep.WORK) and _by_hand(ended):
                self.operation.stopped_by_hand(names)
            self._recover(gangs, step)
            if words := self._undone(gangs, step, ended):
                self.watcher.step(", ".join(names), words)
            raise
        self.operation.finished(names)
        self.views += views

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

    def _recover(self, gangs: Sequence[GangRestart], step: RestartStep) -> None:
        """Requests go to whichever of them serves; one that was never stopped is as it was."""
        with suppress(DeployError):
            if step is RestartStep.ASIDE:
                self.operation.untouched([one.name for one in gangs])
            elif self.router is not None:
                now = see(self.fleet, [one.gang for one in gangs], patience=StragglerWait())
                say_failures(take_in_all(self.router, now), self.watcher)

    def _outcome(self, gangs: Sequence[GangRestart], later: Sequence[GangRestart], step: RestartStep) -> str:
        """What became of these gangs after a failure, and of the others, as text."""
        if self.left is not None:
            return "; ".join(filter(None, (self.left(one, step, False) for one in gangs)))
        names = ", ".join(one.name for one in gangs)
        others = [f"{self.done}: {', '.join(view.name for view in self.views)}"] if self.views else []
        others += [f"not {self.done}: {', '.join(one.name for one in later)}"] if later else []
        if self.returns and step not in (RestartStep.ASIDE, RestartStep.STOP):
            words = [self._go_back(one) for one in gangs]
        elif others or self.returns:
            words = [f"it stopped at {names}"]
        else:
            words = []
        return "; ".join((*words, *others))

    def _undone(self, gangs: Sequence[GangRestart], step: RestartStep, ended: BaseException) -> str:
        """What became of them after an interruption, as text."""
        if self.left is not None:
            return "; ".join(self.left(one, step, True) for one in gangs)
        if self.returns and self.undo_on_interrupt and step is not RestartStep.ASIDE:
            return "; ".join(self._go_back(one) for one in gangs)
        if step in (RestartStep.STOP, RestartStep.WORK) or isinstance(ended, Undone):
            with suppress(DeployError):
                now = see(self.fleet, [one.gang for one in gangs], patience=StragglerWait())
                return "; ".join(f"{view.name} {_is_down(view)}; continue: l40s-deploy up {view.name}" for view in now)
        return ""

    def _go_back(self, one: GangRestart) -> str:
        """Start what it ran before again; returns the outcome as text."""
        if one.before is None:
            return f"{one.name} is stopped: its nodes had no common plan to return to"
        plan = f"{self.returns} {one.before.plan_id}"
        self.watcher.step(one.name, f"restoring plan {one.before.plan_id}")
        try:
            (view,) = see(self.fleet, [one.gang], patience=StragglerWait())
            raising.everybody_answers([view])
            if view.running:  # still draining, if the stop was interrupted
                stop(self.fleet, [one.gang], self.watcher, now=True)
            start = one.before.rising(going_back=True, of_now=facts_of_now(self.fleet, self.watcher))
            raising.raise_all(self.fleet, [start], self.watcher, timeout_s=self.timeout_s)
            put_back(self.router, {one.name: one.before.service_url}, self.watcher)
        except DeployError as second:
            return f"restoring plan {one.before.plan_id} failed too: {second.where}: {second.what}"
        self.operation.finished([one.name])
        return f"{one.name} is back on {plan}"


def _is_down(view: GangView) -> str:
    return "still serves" if view.serves else "is stopping" if view.running else "is stopped"


def _by_hand(ended: BaseException) -> bool:
    """Ctrl-C, and not a terminal that has gone away."""
    return isinstance(ended, KeyboardInterrupt) and not isinstance(ended, Detached)


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
