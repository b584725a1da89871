"""The loops of a guard about all its gangs and the router, each on a thread of its own, by the newest inventory."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from orchestrator.gang.guarding import GuardMemory
from orchestrator.gang.inventory_changes import as_it_stood, changes_of
from orchestrator.gang.steps.guard.post import LOOK_EVERY_S, GangPost, Orders, RouterPost
from orchestrator.gang.steps.guard.request import GuardRequest, GuardWatcher
from orchestrator.gang.steps.guard.watches import RouterWatch
from orchestrator.gang.steps.router.host import router_gang
from orchestrator.model.inventory import ROUTER_GANG, Event, GangSpec, Inventory, RouterSpec
from orchestrator.model.notice import Notice
from orchestrator.protocol.errors import DeployError
from orchestrator.remote.fleet import Fleet

JOIN_S = 0.2


@dataclass
class Roster:
    """The posts of all guarded gangs, by the newest inventory that could be read: a thread each, as daemons, so that
    Ctrl-C ends the guard and leaves the gangs as they are.

    posts: by the gang's name; leaving: those of gangs that left the inventory, until they have ended what they do
    memories: of gangs that left it, and may come back
    """

    inventory: Inventory
    request: GuardRequest
    watcher: GuardWatcher
    posts: dict[str, GangPost] = field(default_factory=dict)
    leaving: list[GangPost] = field(default_factory=list)
    memories: dict[str, GuardMemory] = field(default_factory=dict)
    places: RouterWatch = field(init=False)
    _threads: dict[int, threading.Thread] = field(default_factory=dict)
    """By the post's id()."""
    _wrong: bool = False
    """The newest inventory can't be used, which was said."""

    def __post_init__(self) -> None:
        self.places = RouterWatch(self.inventory.router)

    def __enter__(self) -> Roster:
        return self

    def __exit__(self, *_: object) -> None:
        self.places.end()
        for post in self._all:
            post.ended.set()
        for post in self._all:
            post.held.close()

    def man(self, names: Collection[str]) -> None:
        """A post for each of these gangs, and for the router. Raises LockHeld where another guard has one."""
        for gang in self.inventory.gangs:
            if gang.name in names:
                self.posts[gang.name] = self._post_of(gang)
        if self.inventory.router is not None:
            self.posts[ROUTER_GANG] = self._router_post(self.inventory.router)
        for post in self.posts.values():
            post.man()

    def watch(self) -> None:
        """Until all gangs are given up, or once. Raises the first defect."""
        self.places.start(once=self.request.once)
        for post in self.posts.values():
            self._start(post)
        read_at = time.monotonic()
        while not self._is_over():
            self._wait()
            if self.posts and all(post.surrender is not None for post in self.posts.values()):
                for post in self.posts.values():
                    post.ended.set()
            elif not self.request.once and time.monotonic() - read_at >= LOOK_EVERY_S:
                self._reread()
                read_at = time.monotonic()
        for defect in (post.defect for post in self._all if post.defect is not None):
            raise defect

    @property
    def _all(self) -> tuple[GangPost, ...]:
        return (*self.posts.values(), *self.leaving)

    def _is_over(self) -> bool:
        """A guard without a gang waits for an inventory that has one."""
        living = any(self._threads[id(post)].is_alive() for post in self.posts.values())
        return any(post.defect is not None for post in self._all) or (not living and bool(self.posts))

    def _wait(self) -> None:
        """A moment, or until some loop has ended."""
        living = [thread for post in self.posts.values() if (thread := self._threads[id(post)]).is_alive()]
        if living:
            living[0].join(JOIN_S)
        else:
            time.sleep(JOIN_S)

    def _start(self, post: GangPost) -> None:
        thread = self._threads[id(post)] = threading.Thread(target=post.stand, daemon=True)
        thread.start()

    def _post_of(self, gang: GangSpec) -> GangPost:
        memory = self.memories.pop(gang.name, GuardMemory())
        words = (self.inventory, Fleet(gang.machines), gang, self.request, self.watcher)
        return GangPost(*words, memory=memory, places=self.places, manned=False)

    def _router_post(self, spec: RouterSpec) -> GangPost:
        gang = router_gang(spec)
        words = (self.inventory, Fleet(gang.nodes), gang, self.request, self.watcher)
        return RouterPost(*words, spec=spec, manned=False)

    def _reread(self) -> None:
        self._see_off()
        changed = self.request.reread()
        if isinstance(changed, DeployError):
            self._say_wrong(changed)
        elif changed is not None:
            try:
                self._go_on_by(as_it_stood(changed, self.inventory))
            except DeployError as wrong:
                self._say_wrong(wrong)
        self._fill()

    def _say_wrong(self, wrong: DeployError) -> None:
        self._wrong = True
        why = f"{wrong.where}: {wrong.what}"
        self.watcher.step("inventory", f"it can't be used, and the guard goes on by the old one: {why}; {wrong.fix}")
        self._tell(Event.FINDING, f"it can't be used, and the guard goes on by the old one: {why}", wrong.fix)

    def _go_on_by(self, now: Inventory) -> None:
        words, before = changes_of(self.inventory, now), self.inventory
        if self._wrong:
            self._wrong = False
            self.watcher.step("inventory", "it can be used again")
            self._tell(Event.RESTORED, "it can be used again")
        if now == before:
            return
        self.inventory = now
        self.request.renewed(now)
        if now.router != before.router:
            self.places.end()
            self.places = RouterWatch(now.router)
            self.places.start(once=False)
        if self.request.notifier is not None:
            self.request.notifier.renew(now.notify)
        if words:
            self.watcher.step("inventory", f"it has changed, and the guard goes on by it: {'; '.join(words)}")
            self._tell(Event.CHANGED, f"the guard goes on by it: {'; '.join(words)}")
        self._give_orders(before)

    def _tell(self, event: Event, text: str, fix: str = "") -> None:
        if self.request.notifier is not None:
            self.request.notifier.tell(Notice(event=event, subject="inventory", text=text, fix=fix, at=time.time()))

    @property
    def _meant(self) -> dict[str, GangSpec]:
        names = set(self.request.gangs)
        gangs = self.inventory.gangs
        return {gang.name: gang for gang in gangs if not names or {gang.name, gang.replica_of} & names}

    def _give_orders(self, before: Inventory) -> None:
        meant = self._meant
        for name, post in list(self.posts.items()):
            same_router = name == ROUTER_GANG and self.inventory.router == before.router
            if name in meant or same_router:
                post.wanted = Orders(self.inventory, meant.get(name, post.gang), self.places)
                continue
            self.posts.pop(name).ended.set()
            self.leaving.append(post)
            if name not in meant and name != ROUTER_GANG:
                self.watcher.step(name, "the inventory has no such gang any more: it is not guarded")

    def _see_off(self) -> None:
        """Posts of gangs that have left end what they do first, and nobody takes their places before."""
        for post in [post for post in self.leaving if not self._threads[id(post)].is_alive()]:
            self.leaving.remove(post)
            del self._threads[id(post)]
            self.memories[post.gang.name] = post.memory
            post.held.close()

    def _fill(self) -> None:
        """Posts of gangs that are new, and of the router."""
        held = {*self.posts, *(post.gang.name for post in self.leaving)}
        added = [self._post_of(gang) for name, gang in self._meant.items() if name not in held]
        if self.inventory.router is not None and ROUTER_GANG not in held:
            added.append(self._router_post(self.inventory.router))
        for post in added:
            self.posts[post.gang.name] = post
            self.watcher.step(post.gang.name, "it is guarded from now on")
            self._start(post)
