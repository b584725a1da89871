"""A gang's turn: remove from the router, drain, stop, work, start, canary, add again.

Whatever restarts gangs that serve takes them through this: with the plan they had or another one, with work on their
nodes in between or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from orchestrator.gang.steps import raising
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.restart import stop
from orchestrator.gang.steps.router.routing import Router, say_failures, take_in_all, wait_until_drained
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.steps.weights_ahead import weights_ahead
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError, Detached
from orchestrator.model.inventory import GangSpec
from orchestrator.remote.fleet import Fleet, StragglerWait


class RestartStep(Enum):
    """Where a turn is. Before STOP nothing has changed but for the router; from then on the gang is down."""

    ASIDE = "aside"
    STOP = "stop"
    WORK = "work"
    START = "start"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a gang serves. serving: requests are answered there now, so that there are some to wait for.
    then: where it will serve after its turn, where that is another address."""

    gang: GangSpec
    url: str
    serving: bool = True
    then: str = ""


def _nothing() -> None:
    """No work between stop and start, nothing to check."""


def _takes_any(_: Sequence[GangView]) -> None:
    """Whatever is ready serves."""


def _says_nothing(_: RestartStep) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRestart:
    """The turn of one gang, or of a few at a time.

    start:   what each of them is to run, in the same order
    drain_s: how long requests that run are waited for before anything is stopped; now: they are not
    check:   raises what forbids the start, while these gangs serve; called where another turn has passed since the
             command ran its checks of all
    work:    between stop and start
    accept:  raises where what came up is not what was wanted
    failed, left: after a failure at a step, and after an interruption: the outcome as text; '' for none
    """

    places: tuple[Address, ...]
    start: tuple[raising.Rising, ...]
    drain_s: float
    timeout_s: float
    now: bool = False
    undo_on_interrupt: bool = False
    before_go: raising.BeforeGo | None = None
    check: Callable[[], None] = _nothing
    work: Callable[[], None] = _nothing
    accept: Callable[[Sequence[GangView]], None] = _takes_any
    failed: Callable[[RestartStep], str] = _says_nothing
    left: Callable[[RestartStep], str] = _says_nothing

    @property
    def gangs(self) -> tuple[GangSpec, ...]:
        """Whose turn it is."""
        return tuple(place.gang for place in self.places)

    @property
    def names(self) -> tuple[str, ...]:
        """Of these gangs."""
        return tuple(gang.name for gang in self.gangs)


@dataclass
class RestartSequence:
    """Turns, one after the other, as parts of one operation. router: None where nothing sends requests elsewhere."""

    fleet: Fleet
    router: Router | None
    watcher: raising.Watcher
    operation: Operation
    _taken: bool = False

    def take(self, turn: GangRestart) -> raising.StartedGangs:
        """Raises what its steps raise, with what became of the gangs. A gang that serves is in the router then."""
        step = RestartStep.ASIDE
        self.operation.turn(turn.names)
        try:
            if self._taken:
                turn.check()
            self._taken = True
            with weights_ahead(self.fleet, [] if turn.now else [one.reads for one in turn.start]):
                self._aside(turn)
                step = RestartStep.STOP
                stop(self.fleet, turn.gangs, self.watcher, now=turn.now)
            step = RestartStep.WORK
            turn.work()
            step = RestartStep.START
            raised = self._start(turn)
            step = RestartStep.BACK
            put_back(self.router, turn.places, self.watcher)
        except DeployError as failure:
            self._recover(turn, step)
            if words := turn.failed(step):
                failure.what += f"\n    {words}"
            raise
        except BaseException as ended:
            if step in (RestartStep.STOP, RestartStep.WORK) and _by_hand(ended):
                self.operation.stopped_by_hand(turn.names)
            self._recover(turn, step)
            if words := turn.left(step):
                self.watcher.step(", ".join(turn.names), words)
            raise
        self.operation.finished(turn.names)
        return raised

    def _aside(self, turn: GangRestart) -> None:
        if turn.now:
            take_out(self.router, turn.places, self.watcher)
        else:
            set_aside(self.fleet, self.router, turn.places, self.watcher, drain_s=turn.drain_s)

    def _start(self, turn: GangRestart) -> raising.StartedGangs:
        raised = raising.raise_all(
            self.fleet,
            turn.start,
            self.watcher,
            timeout_s=turn.timeout_s,
            undo_on_interrupt=turn.undo_on_interrupt,
            before_go=turn.before_go,
        )
        turn.accept(raised.views)
        return raised

    def _recover(self, turn: GangRestart, step: RestartStep) -> None:
        """Requests go to whichever of them serves; one that was never stopped is as it was."""
        with suppress(DeployError):
            if step is RestartStep.ASIDE:
                self.operation.untouched(turn.names)
            elif self.router is not None:
                say_failures(
                    take_in_all(self.router, see(self.fleet, turn.gangs, patience=StragglerWait())), self.watcher
                )


def _by_hand(ended: BaseException) -> bool:
    """Ctrl-C, and not a terminal that has gone away."""
    return isinstance(ended, KeyboardInterrupt) and not isinstance(ended, Detached)


def set_aside(
    fleet: Fleet,
    router: Router | None,
    places: Sequence[Address],
    watcher: raising.Watcher,
    *,
    drain_s: float,
) -> None:
    """Have no request go there, and wait until none runs. What ends it puts them back: nothing was stopped."""
    try:
        take_out(router, places, watcher)
        for place in places:
            if place.serving:
                watcher.step(place.gang.name, "draining requests")
                wait_until_drained(fleet, place.gang, place.url, deadline_s=drain_s)
    except BaseException:
        put_back(router, [place for place in places if place.serving], watcher, before=True)
        raise


def take_out(router: Router | None, places: Sequence[Address], watcher: raising.Watcher) -> None:
    """Have no new request go there."""
    if router is None:
        return
    for place in places:
        watcher.step(place.gang.name, "removing it from the router")
        router.take_out(place.url)


def put_back(
    router: Router | None, places: Sequence[Address], watcher: raising.Watcher, *, before: bool = False
) -> None:
    """Have requests go there again. before: its turn, so to where it served then."""
    if router is None:
        return
    for place in places:
        watcher.step(place.gang.name, "adding it to the router")
        router.take_in(place.url if before else place.then or place.url)
