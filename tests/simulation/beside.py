"""A guard beside a simulated service: production's roster, looks and restarts by the simulated clock; the doctor is not
asked. Beside a row of the table of changes, what it would do is kept and not done: in no row has it anything to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.simulation.controllers import STAGE, Actor, Controller, Event, SimulatedFleet, Watcher
from tests.simulation.service import Service, operation_of

from orchestrator.gang.guarding import GuardAction, GuardDecision, Policy
from orchestrator.gang.steps.guard import guard, roster, watches
from orchestrator.gang.steps.guard import post as posts
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.status import overview
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import ROUTER_GANG, Inventory
from orchestrator.model.notice import Notice
from orchestrator.monitoring.steps import notify
from orchestrator.monitoring.steps.notify import Notifier
from orchestrator.protocol.errors import DeployError

NOTHING = "nothing"
GUARD = "guard"
"""The name of its controller."""
QUICK = Policy(limit=1000, first_pause_s=0.5, most_pause_s=4.0, stable_s=5.0)
LOOKS_ONLY = (GuardAction.NOTHING, GuardAction.WARN, GuardAction.WAIT)


class Ears(Notifier):
    """A guard's receivers. heard: what they were told, and when."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        super().__init__((), "hosts.yml", lambda _: None)
        self._file, self._now = folder / "told.json", now
        self._lines = {None: None}  # type: ignore[dict-item]
        self.heard: list[tuple[float, Notice]] = []

    def renew(self, recipients: object) -> None: ...

    def tell(self, notice: Notice) -> None:
        self.heard.append((self._now(), notice))


class SimulatedThread:
    """threading.Thread by the simulated clock."""

    def __init__(self, *, target: Callable[..., None], args: tuple[object, ...] = (), daemon: bool = True) -> None:
        self._work = lambda: target(*args)
        self._actor: Actor | None = None

    def start(self) -> None:
        self._actor = STAGE[0].spawn(STAGE[0].me().controller, self._work)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.over

    def join(self, seconds: float = 0.2) -> None:
        STAGE[0].sleep(seconds)


@dataclass
class Guarding:
    """inventory: as its file is now; wanted: what the guard would have done."""

    ears: Ears
    inventory: Inventory
    wanted: list[str] = field(default_factory=list)
    _read: Inventory | None = None

    def reread(self) -> Inventory | None:
        """As of `GuardRequest`."""
        if self.inventory is self._read:
            return None
        self._read = self.inventory
        return self.inventory

    def words(self, since: float) -> str:
        """The messages that came since, each by its event and whom it is about, in the alphabet's order."""
        heard = sorted(f"{notice.event.value} {notice.subject}" for at, notice in self.ears.heard if at >= since)
        return ", ".join(heard) or NOTHING


@dataclass
class _Watching(Watcher):
    """words: of the guard, for the reader of a violation."""

    words: list[str]

    def step(self, gang: str, words: str) -> None:
        self.words.append(f"{gang}: {words}")

    def decided(self, gang: str, decision: GuardDecision) -> None:
        self.words.append(f"{gang}: {decision.do.value} {decision.why}")


def _done(work: Callable[[], Any]) -> Future[Any]:
    """`ahead` without a thread of its own."""
    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except DeployError as failure:
        future.set_exception(failure)
    return future


@contextlib.contextmanager
def guarded(service: Service, folder: Path, inventory: Inventory, *, acts: bool = False) -> Iterator[Guarding]:
    """A guard of all gangs and the router, on a controller of its own. Within `operated`. acts: it does what it
    decides; else that is kept."""
    world, stage = service.world, STAGE[0]
    beside = Guarding(Ears(folder, lambda: world.now), inventory, _read=inventory)
    request = GuardRequest(notifier=beside.ears, reread=beside.reread, policy=QUICK if acts else Policy())
    first = next(iter(service.gangs.values()))
    watchman = Controller(GUARD, first, stage, service.controllers[0].spec)
    service.controllers.append(watchman)
    service.asked_for[GUARD] = (*service.names, ROUTER_GANG)
    moment = SimpleNamespace(monotonic=lambda: world.now, time=lambda: world.now, sleep=stage.sleep)
    threads = SimpleNamespace(Thread=SimulatedThread, Event=Event)
    lock: Any = GangLock

    def act(post: Any, _: GangView, __: object) -> None:
        decision: GuardDecision = post.decision
        if decision.do not in LOOKS_ONLY:
            beside.wanted.append(f"{decision.do.value} {post.gang.name}: {decision.why}")

    starts, asks = roster.Roster._start, watches.RouterWatch.start

    def start(its_roster: Any, post: Any) -> None:
        post.ended, post._heard_at = Event(), world.now
        starts(its_roster, post)

    def watch(places: Any, *, once: bool) -> None:
        places._over = Event()
        asks(places, once=once)

    with ExitStack() as patched:
        for target, name, value in (
            (posts, "time", moment), (posts, "threading", threads), (posts, "Fleet", SimulatedFleet),
            (roster, "time", moment), (roster, "threading", threads), (roster, "Fleet", SimulatedFleet),
            (posts, "GangLock", lambda *words, **more: lock(*words, **more, _given_back=Event())),
            *(_acting() if acts else [(posts.GangPost, "_act", act)]),
            (watches.HealthWatch, "ask_if_due", lambda *_, **__: None),
            (roster.Roster, "_start", start), (watches.RouterWatch, "start", watch), (watches, "threading", threads),
            (watches, "Fleet", SimulatedFleet), (notify, "time", moment), (overview, "ahead", _done),
        ):  # fmt: skip
            patched.enter_context(mock.patch.object(target, name, value))
        stage.spawn(watchman, lambda: _stand(inventory, request, _Watching(service.guard_words)))
        yield beside
        service.controllers.remove(watchman)
        watchman.kill()
        world.run(world.now + 0.001, lambda: None)


def _acting() -> list[tuple[Any, str, Any]]:
    """What stands for the world in its restarts."""

    @contextlib.contextmanager
    def connected(inventory: Inventory) -> Iterator[Any]:
        yield operation_of(inventory)

    return [
        (posts, "connected", connected), (posts, "against_starts", lambda *_: None),
        (posts, "facts_of_now", lambda *_: None),
    ]  # fmt: skip


def _stand(inventory: Inventory, request: GuardRequest, watcher: _Watching) -> None:
    guard.guard(inventory, request, watcher)
