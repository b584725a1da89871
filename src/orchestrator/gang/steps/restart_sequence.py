"""The steps of every restart, whichever verb it is for: checked while it serves, out of the router, drained, stopped,
worked on, started, in the router again; or back on the plan that it had.

A verb says what its gangs are to run and in which order. What it begins on them is kept on their nodes until it is
finished, whatever becomes of the command.
"""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from orchestrator.gang.claims import Way
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.down import stop
from orchestrator.gang.steps.locks import GangLock, user
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.router.client import KeyNotPassed, Router
from orchestrator.gang.steps.router.draining import wait_until_drained
from orchestrator.gang.steps.router.routing import (
    NamesTwoModels,
    rejoin,
    say_failures,
    take_in_all,
    why_not_in,
)
from orchestrator.gang.steps.staging import Staged, facts_of_now
from orchestrator.gang.steps.start_time import downtime_words
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import DeployError, Detached, InputError, Undone, Unreachable
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
class RestartVerb:
    """What one verb wants.

    what:     as the nodes remember it
    done:     what was done to a gang afterwards, as text
    together: all gangs at a time, whose requests the engines alone wait for; else one after the other, each once its
              requests are answered, for up to `DRAIN_S`
    rolls:    others serve meanwhile; else each gang's downtime is told before it is taken down
    before:   older plans of these gangs, which they are to run. None: the plans that they have
    returns:  a gang that does not come up, or is undone, starts what it ran before: as text; '': it stays as it ended
    work:     on the nodes of a gang, one after the other, between stop and start
    """

    what: OperationKind
    done: str = "restarted"
    together: bool = False
    rolls: bool = False
    before: Callable[[Operation, Sequence[Staged]], list[Staged]] | None = None
    returns: str = ""
    work: Callable[[Fleet, RestartRequest, Watcher, Staged], None] | None = None


RESTART = RestartVerb(what=OperationKind.RESTART, together=True)
ROLLING = RestartVerb(what=OperationKind.ROLLING, rolls=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """now: without draining. timeout_s: for one start, and for the wait for other commands behind the router.
    all_at_once: without that wait.
    hung_after_s: how long a started engine may show no progress before it counts as hung; None: as it was.
    accept: findings that do not forbid the stop, `ID` or `ID@node`.

    Rolling: without_router: whoever sends requests looks after himself.
    Maintenance: run: a command line on this machine, once a node, with L40S_NODE, L40S_HOST and L40S_GANG in its
    environment. reboots: wait for a new boot of each node; without `run` that is all there is to wait for. wait_s: for
    one gang's nodes."""

    verb: RestartVerb = RESTART
    gangs: tuple[str, ...] = ()
    command: str = "restart"
    now: bool = False
    timeout_s: float = 3600.0
    hung_after_s: float | None = None
    accept: tuple[str, ...] = ()
    without_router: bool = False
    all_at_once: bool = False
    run: str = ""
    reboots: bool = False
    wait_s: float = 3600.0

    def __post_init__(self) -> None:
        """Raises InputError for a command line that is blank or whose quotes are open."""
        try:
            if self.run and not shlex.split(self.run):
                raise InputError("it is blank", where="--run", fix="name a program, or leave the option out")
        except ValueError as wrong:
            raise InputError(f"can't be parsed: {wrong}", where="--run", fix="close the quotes") from None

    @property
    def way(self) -> Way:
        """What other commands' changes behind the router mean to it."""
        if self.all_at_once:
            return Way.AT_ONCE
        return Way.REDIRECTED if self.without_router else Way.WAITS

    @classmethod
    def option_names(cls) -> list[str]:
        """What is needed to go on, without what is chosen then."""
        return sorted(set(cls.__dataclass_fields__) - {"verb", "gangs", "command"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRestart:
    """One gang's part.

    gang:   where it runs now
    view:   as it was seen before
    before: what its nodes have staged now; None where they do not have the same plan
    plan:   what it is to run
    """

    gang: GangSpec
    view: GangView
    before: Staged | None
    plan: Staged

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


@dataclass(kw_only=True)
class RestartSequence:
    """Restarts gangs as parts of one operation.

    router: None where nothing sends requests elsewhere meanwhile
    front:  the inventory's router; what comes up joins it if it serves by then
    check:  raises what forbids the start, while these gangs serve; asked where another restart has passed since the
            command ran its checks of all
    accept: raises where what came up is not what was wanted
    our_turn: raises where another command has taken over the turn behind the router; asked before a gang goes down
    judged: gangs whose new plan `accept` judges: without its verdict no request goes to it
    """

    fleet: Fleet
    router: Router | None
    front: Router | None
    watcher: Watcher
    request: RestartRequest
    check: Callable[[Sequence[GangRestart]], None]
    undo_on_interrupt: bool = False
    before_go: raising.BeforeGo | None = None
    accept: Callable[[Sequence[GangView]], None] = lambda _: None
    our_turn: Callable[[], None] = lambda: None
    judged: Collection[str] = ()
    views: tuple[GangView, ...] = ()
    """Of the gangs that serve again."""
    returned: set[str] = field(default_factory=set)
    """Gangs that are back on what they ran before."""
    refused: dict[str, str] = field(default_factory=dict)
    """By gang: the run that was not what was wanted."""
    _risen: tuple[GangView, ...] = ()
    _begun: dict[str, tuple[GangLock, GangOperation]] = field(default_factory=dict)
    """What is not finished yet, by gang."""

    def run(self, gangs: Sequence[GangRestart], locks: Mapping[str, GangLock]) -> tuple[GangView, ...]:
        """Raises LockHeld, why a node can't keep what is begun, and what the steps raise, with what became of the
        gangs. A gang that serves is in the router then. locks: held, by gang.

        An error that ends it has been reported to the operator: nothing is left to resume, unless a node was lost
        halfway. An interruption leaves everything that is not finished for the next `up` or a guard.
        """
        verb, options = self.request.verb, {name: getattr(self.request, name) for name in RestartRequest.option_names()}
        for turn in gangs:
            begun = GangOperation(
                gang=turn.name,
                what=verb.what,
                was_run=turn.view.run_id,
                command=self.request.command,
                who=user(),
                host=socket.gethostname(),
                since=time.time(),
                options=options,
                unjudged=turn.name in self.judged,
            )
            self._begun[turn.name] = locks[turn.name], begun
        try:
            self._keep([turn.name for turn in gangs])
            done = 0
            for batch in [gangs] if verb.together else [[turn] for turn in gangs]:
                if done:
                    self.check(batch)
                done += len(batch)
                self._restart(batch, [turn.name for turn in gangs[done:]])
        except DeployError as error:
            if not isinstance(error, Unreachable):
                self._finished(list(self._begun))
            raise
        return self.views

    def _keep(self, gangs: Iterable[str], **change: Any) -> None:
        """On these gangs' nodes: where their turn is."""
        for name in gangs:
            lock, begun = self._begun[name]
            self._begun[name] = lock, replace(begun, **change)
            lock.begin(self._begun[name][1])

    def _finished(self, gangs: Iterable[str]) -> None:
        for name in gangs:
            if name in self._begun:
                self._begun.pop(name)[0].finish()

    def _restart(self, gangs: Sequence[GangRestart], later: Sequence[str]) -> None:
        names, step = [turn.name for turn in gangs], RestartStep.ASIDE
        for turn in () if self.request.verb.rolls else gangs:
            self.watcher.step(turn.name, turn.downtime(now=self.request.now))
        self._keep(names, turning=True)
        try:
            for step in RestartStep:
                self._do(step, gangs)
        except DeployError as failure:
            self._failed(gangs, later, step, failure)
            raise
        except BaseException as ended:
            self._ended(gangs, later, step, ended)
            raise
        self._finished(names)
        self.views += self._risen

    def _failed(
        self, gangs: Sequence[GangRestart], later: Sequence[str], step: RestartStep, failure: DeployError
    ) -> None:
        """What can be put back is; the failure says how things stand."""
        refused = step is RestartStep.START and self.request.verb.returns
        if not refused:  # no request goes to what is refused
            self._recover(gangs, step)
        if words := self._outcome(gangs, later, step):
            failure.what += f"\n    {words}"

    def _ended(
        self, gangs: Sequence[GangRestart], later: Sequence[str], step: RestartStep, ended: BaseException
    ) -> None:
        """Interrupted by its operator, or by a fault of ours."""
        names = [turn.name for turn in gangs]
        by_hand = self.request.verb.what is OperationKind.MAINTENANCE and step in _DOWN
        if by_hand and isinstance(ended, KeyboardInterrupt) and not isinstance(ended, Detached):
            with suppress(DeployError):  # its operator may still work on the nodes: before anything that waits
                self._keep(names, by_hand=True)
        self._recover(gangs, step)
        if words := self._undone(gangs, later, step, ended):
            self.watcher.step(", ".join(names), words)

    def _before(self, step: RestartStep, gangs: Sequence[GangRestart]) -> None:
        """Raises what forbids to take these gangs out."""
        if step in (RestartStep.ASIDE, RestartStep.STOP):
            self.our_turn()
        if step is not RestartStep.ASIDE or self.router is None:
            return
        if self.request.verb.what is not OperationKind.CHANGE:
            refuse_other_keys(self.router, gangs)
        for turn in gangs if self.request.verb.before else ():
            self.router.refuse_planned_key(turn.plan.api_key, turn.plan.plan_id)
        if self.request.verb.what is OperationKind.CHANGE:
            self.router.refuse_last_key([turn.url for turn in gangs])

    @property
    def _waits_for_requests(self) -> bool:
        """Before the stop, for the last one. Where nobody sends them elsewhere they come until the stop: the wait might
        never end, and the engine drains then."""
        redirected = self.router is not None or self.request.without_router
        return redirected and not (self.request.now or self.request.verb.together)

    def _do(self, step: RestartStep, gangs: Sequence[GangRestart]) -> None:
        verb, now = self.request.verb, self.request.now
        self._before(step, gangs)
        match step:
            case RestartStep.ASIDE if self._waits_for_requests:
                set_aside(self.fleet, self.router, gangs, self.watcher)
            case RestartStep.ASIDE:
                take_out(self.router, gangs, self.watcher)
            case RestartStep.STOP:
                stop(self.fleet, [turn.gang for turn in gangs], self.watcher, now=now)
            case RestartStep.WORK if verb.work is not None:
                for turn in gangs:
                    verb.work(self.fleet, self.request, self.watcher, turn.plan)
            case RestartStep.START:
                self._risen = raising.raise_all(
                    self.fleet,
                    [turn.plan for turn in gangs],
                    self.watcher,
                    timeout_s=self.request.timeout_s,
                    undo_on_interrupt=self.undo_on_interrupt,
                    before_go=self.before_go,
                )
                self._judge(gangs)
            case RestartStep.BACK if self.router is None:
                rejoin(self.front, self._risen, self.watcher)
            case RestartStep.BACK:
                put_back(self.router, self._where_they_serve(gangs), self.watcher)

    def _judge(self, gangs: Sequence[GangRestart]) -> None:
        self.accept(self._risen)
        self._keep([turn.name for turn in gangs if turn.name in self.judged], unjudged=False)

    def _where_they_serve(self, gangs: Sequence[GangRestart]) -> list[GangView]:
        """Those that have come up, with their addresses by the plan."""
        urls = {turn.name: turn.plan.service_url or turn.url for turn in gangs}
        return [_at(view, urls[view.name]) for view in self._risen]

    def _now(self, gangs: Sequence[GangRestart]) -> tuple[GangView, ...]:
        return see(self.fleet, [turn.gang for turn in gangs], patience=StragglerWait())

    def _recover(self, gangs: Sequence[GangRestart], step: RestartStep) -> None:
        """Requests go to whichever of them serves; one that was never stopped is as it was."""
        with suppress(DeployError):
            if step is RestartStep.ASIDE:
                self._keep([turn.name for turn in gangs], turning=False)
            elif self.router is not None:
                now = [view for view in self._now(gangs) if self._begun[view.name][1].lets_in(view.run_id)]
                say_failures(take_in_all(self.router, now), self.watcher)

    def _outcome(self, gangs: Sequence[GangRestart], later: Sequence[str], step: RestartStep) -> str:
        """What became of these gangs after a failure, and of the others, as text."""
        if self.request.verb.work is not None:
            return "; ".join(how_to_go_on(turn.name, later, step) for turn in gangs)
        done = self.request.verb.done
        others = [f"{done}: {', '.join(view.name for view in self.views)}"] if self.views else []
        others += [f"not {done}: {', '.join(later)}"] if later else []
        if self.request.verb.returns and step not in (RestartStep.ASIDE, RestartStep.STOP):
            others = [*map(self._go_back, gangs), *others]
        elif others or self.request.verb.returns:
            others.insert(0, f"it stopped at {', '.join(turn.name for turn in gangs)}")
        return "; ".join(others)

    def _undone(
        self, gangs: Sequence[GangRestart], later: Sequence[str], step: RestartStep, ended: BaseException
    ) -> str:
        """What became of them after an interruption, as text."""
        if self.request.verb.work is not None:
            return "; ".join(how_to_go_on(turn.name, later, step, interrupted=True) for turn in gangs)
        if self.request.verb.returns and self.undo_on_interrupt and step is not RestartStep.ASIDE:
            return "; ".join(map(self._go_back, gangs))
        if step in _DOWN or isinstance(ended, Undone):
            with suppress(DeployError):
                return "; ".join(
                    f"{view.name} {_is_down(view)}; continue: l40s-deploy up {view.name}" for view in self._now(gangs)
                )
        return self._no_verdict(gangs) if step is RestartStep.START else ""

    def _no_verdict(self, gangs: Sequence[GangRestart]) -> str:
        names = ", ".join(turn.name for turn in gangs if self._begun[turn.name][1].unjudged)
        if not names:
            return ""
        goes = "gets no requests" if self.router is not None else "serves"
        return (
            f"the gate came to no verdict on {names}, whose new plan {goes}: `l40s-deploy up {names}` returns to the"
            " plan before, this command to judge anew, and without --gate to take it as it is"
        )

    def _go_back(self, turn: GangRestart) -> str:
        """Start what it ran before again; returns the outcome as text."""
        if turn.before is None:
            return f"{turn.name} is stopped: its nodes had no common plan to return to"
        self.watcher.step(turn.name, f"restoring plan {turn.before.plan_id}")
        try:
            (view,) = self._now([turn])
            raising.everybody_answers([view])
            if view.run_id != turn.view.run_id:
                self.refused[turn.name] = view.run_id
            if view.running:  # still draining, if the stop was interrupted
                stop(self.fleet, [turn.gang], self.watcher, now=True)
            start = turn.before.again(facts_of_now(self.fleet, self.watcher.step), going_back=True)
            views = raising.raise_all(self.fleet, [start], self.watcher, timeout_s=self.request.timeout_s)
            put_back(self.router, [_at(view, turn.before.service_url) for view in views], self.watcher)
        except DeployError as second:
            return f"restoring plan {turn.before.plan_id} failed too: {second.where}: {second.what}"
        self._finished([turn.name])
        self.returned.add(turn.name)
        return f"{turn.name} is back on {self.request.verb.returns} {turn.before.plan_id}"


def _is_down(view: GangView) -> str:
    if view.serves:
        return "still serves"
    return "is stopping" if view.running else "is stopped"


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
    now = see(fleet, [turn.gang for turn in gangs], patience=StragglerWait())
    serving = [(turn, view) for turn, view in zip(gangs, now, strict=True) if view.service_healthy]
    try:
        take_out(router, gangs, watcher)
        for turn, _ in serving:
            watcher.step(turn.name, "draining requests")
            wait_until_drained(fleet, turn.gang, turn.url, watcher)
    except BaseException:
        put_back(router, [_at(view, turn.url) for turn, view in serving], watcher)
        raise


def refuse_other_keys(router: Router, gangs: Sequence[GangRestart]) -> None:
    """A gang that keeps its key through a restart would not get into the router again if that sends another one by now.
    Raises for one that serves; nothing was stopped."""
    for turn in gangs:
        if turn.view.serves:
            router.refuse_other_key(turn.url)


def take_out(router: Router | None, gangs: Sequence[GangRestart], watcher: Watcher) -> None:
    """Have no new request go there."""
    if router is None:
        return
    for turn in gangs:
        watcher.step(turn.name, "removing it from the router")
        router.take_out(turn.url)


def put_back(router: Router | None, views: Sequence[GangView], watcher: Watcher) -> None:
    """Have requests go to these gangs again, by all names that each is to have. Raises why they can't; one whose key
    the router does not pass on yet serves, and is said to be out."""
    if router is None:
        return
    agreed = [view for view in views if view.service_url]
    for view in agreed:
        watcher.step(view.name, "adding it to the router")
        failure = why_not_in(router, view, agreed)
        if isinstance(failure, (NamesTwoModels, KeyNotPassed)):
            say_failures({view.name: failure}, watcher)
        elif failure is not None:
            raise failure


def _at(view: GangView, url: str) -> GangView:
    """With the address by which this command knows it, where it does."""
    return replace(view, service_url=url or view.service_url)
