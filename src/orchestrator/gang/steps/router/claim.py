"""The claim on the router's host: one command at a time takes a gang out from behind the router."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

from orchestrator.gang.claims import (
    EXPIRES_S,
    ClaimStep,
    Found,
    TurnNeed,
    Way,
    changing,
    claim_step,
    need,
    taking_turns,
)
from orchestrator.gang.steps.down import DOWN, told_to_end
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.status.reports import renewed, shown_locks
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import DeployError, LockHeld
from orchestrator.protocol.verbs import LockAnswer, LockHolder

POLL_S = 1.0
RENEW_EVERY_S = 5.0
CLAIM = "turn.all"
"""Its name among the locks on the router's host."""
_FIX = (
    "run the command again when that has ended, or with --all-at-once, which does not wait: requests fail while no"
    " other gang serves"
)


_BETWEEN_GANGS = ", "
"""As a claim's reason names what its command takes out or starts."""


def claimed(router: Router) -> dict[str, LockHolder]:
    """By gang, which command takes it out or starts it, by its claim on the router's host."""
    holders = renewed(shown_locks(router.fleet, [_claim_on(router)])).values()
    return {name: holder for holder in holders for name in (holder.why or "").split(_BETWEEN_GANGS)}


def _claim_on(router: Router) -> GangSpec:
    return replace(router.gang, name=CLAIM)


class RouterClaim(GangLock):
    """The claim, held between `with`: a lock that expires sooner, on a machine that every controller sees."""

    @property
    def renew_every_s(self) -> float:
        """Five heartbeats may get lost."""
        return RENEW_EVERY_S

    def _holder(self) -> LockHolder:
        return replace(super()._holder(), expires_s=EXPIRES_S)

    def _held(self, held: Mapping[str, LockAnswer]) -> LockHeld:
        node, answer = next(iter(held.items()))
        return LockHeld(_words(answer.held), where=node, fix=_FIX)

    def _lost_to(self, lost: Mapping[str, LockAnswer]) -> LockHeld:
        node, answer = next(iter(lost.items()))
        now = "no command has it now" if answer.held is None else _words(answer.held)
        return LockHeld(
            f"the claim to change gangs behind the router was lost (no heartbeat for {EXPIRES_S:.0f} s): {now}",
            where=node,
            fix="check `l40s-deploy status`, then run this command again",
        )


def _words(holder: LockHolder | None) -> str:
    if holder is None or not holder.who:
        return "another command changes gangs behind the router; its claim can't be read"
    return (
        f"{holder.name} changes {holder.why or 'a gang'} behind the router with `{holder.command}`, for"
        f" {holder.held_s:.0f} s; last heartbeat {holder.age_s:.0f} s ago"
    )


@dataclass
class RouterTurn:
    """A command's turn behind the router. A context manager: it holds the claim from `take` or `wait` on.

    One turn is for all gangs of a command, which takes them out one after the other.

    gangs:      those that it will take out or start
    patience_s: how long `wait` waits in all
    """

    operation: Operation
    gangs: Collection[str]
    command: str
    watcher: Watcher
    patience_s: float
    way: Way = Way.WAITS
    _claim: RouterClaim | None = None
    _why: DeployError | None = None
    """Why it can't have its turn now."""
    _told: str = ""
    _ends: float = 0.0
    _opened: ExitStack = field(default_factory=ExitStack)

    @property
    def token(self) -> str:
        """By which the claim is known as this command's; '' without it."""
        return self._claim.token if self._claim is not None else ""

    def __enter__(self) -> RouterTurn:
        self._ends = time.monotonic() + self.patience_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def wait(self) -> bool:
        """Return once it is this command's turn; whether that took a wait, so that what was seen before is old.

        Raises LockHeld when the patience is over, and why the router's host can't be asked: nothing was stopped.
        """
        waited = False
        while not self.take():
            waited = True
            time.sleep(POLL_S)
        return waited

    def take(self) -> bool:
        """Whether it is this command's turn, which it has then. Raises as `wait` does."""
        if not taking_turns(self.operation.inventory):
            return True
        wanted, state = self._look()
        step = claim_step(wanted, state, self._ends - time.monotonic())
        if step is ClaimStep.WAIT:
            self._say()
        elif step is not ClaimStep.GO and self._why is not None:
            raise self._error(step)
        return step is not ClaimStep.WAIT

    def announce(self) -> None:
        """Have the claim if it is free: whoever takes another gang out waits for this one. Nothing without gangs."""
        if self.gangs and taking_turns(self.operation.inventory):
            self._acquire()

    def still_ours(self) -> None:
        """Before a gang is taken out. Raises LockHeld where another command has taken the claim over."""
        if self._claim is not None:
            self._claim.still_ours()

    def _look(self) -> tuple[TurnNeed, Found]:
        state = self._acquire()  # before the look: what others do later, they do knowing of us
        if self.way is Way.AT_ONCE:
            return TurnNeed.ANNOUNCES, state
        views = self.operation.glance()
        wanted, busy = need(self.way, views, self.gangs), changing(views, self.gangs)
        if state is Found.OURS and busy:
            state = Found.BUSY
            names = ", ".join(f"{view.name} is {view.state.value}" for view in busy)
            self._why = LockHeld(f"{names} behind the same router", where=f"gang {busy[0].name}", fix=_FIX)
        if state is Found.OURS and (ending := self._ending()):
            state = Found.BUSY
            names = ", ".join(sorted(ending))
            self._why = LockHeld(f"`{DOWN}` ends {names} behind the same router", where=f"gang {names}", fix=_FIX)
        return wanted, state

    def _ending(self) -> frozenset[str]:
        """Gangs of others that serve still, and that a `down` ends."""
        others = [gang for gang in self.operation.inventory.gangs if gang.name not in self.gangs]
        return told_to_end(self.operation.fleet, others)

    def _acquire(self) -> Found:
        if self._claim is not None:
            return Found.OURS
        router = self.operation.router
        assert router is not None  # where gangs take turns there is one
        why = _BETWEEN_GANGS.join(sorted(self.gangs))
        claim = RouterClaim(router.fleet, _claim_on(router), self.command, why=why)
        try:
            self._opened.enter_context(claim)
        except LockHeld as held:
            self._why = held
            return Found.HELD
        except DeployError as failure:
            self._why = failure
            return Found.AWAY
        self._claim = claim
        return Found.OURS

    def _say(self) -> None:
        """Whom it waits for, once; heartbeats and seconds are no news."""
        holder = (self._why.what if self._why else "").partition(", for ")[0]
        if holder != self._told:
            self._told = holder
            self.watcher.step(", ".join(sorted(self.gangs)), f"waiting: {holder}")

    def _error(self, step: ClaimStep) -> DeployError:
        assert self._why is not None
        if step is ClaimStep.LATE:
            self._why.what += f"; waited {self.patience_s:.0f} s, and nothing was stopped"
        else:
            self._why.what += "; whether another gang behind the router is changing is unknown, so nothing was stopped"
        return self._why
