"""What a guard is asked for, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.gang.guarding import (
    GuardDecision,
    Policy,
)
from orchestrator.gang.steps.guard.notice_hook import Hook
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.view import GangView
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec, Inventory, Recipient
from orchestrator.model.notice import Notice
from orchestrator.protocol.errors import DeployError
from orchestrator.remote.fleet import Fleet

USUAL = Policy()
NO_HOOK = Hook()


class GuardWatcher(Watcher, Protocol):
    """Whoever shows what goes on."""

    def decided(self, gang: str, decision: GuardDecision) -> None:
        """Something other than before is to be done, or nothing any more."""


@dataclass(frozen=True, slots=True)
class GuardCheck:
    """A room's question to a gang that serves. finding: what is wrong; raises nothing."""

    every_s: float
    finding: Callable[[Fleet, GangSpec], Finding | None]


class Notifies(Protocol):
    """Tells people what happens to a gang."""

    def look(self, view: GangView) -> None:
        """Tell what is new of it."""

    def tell(self, notice: Notice) -> None:
        """Send this, soon."""

    def renew(self, recipients: Sequence[Recipient]) -> None:
        """Tell these from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRequest:
    """once: look once, and do what is due (for cron, and for tests). timeout_s: for one start.
    hung_after_s: for an engine that it starts: how long it may show no progress before it counts as hung; None: as it
    was. restores: return to all nodes as soon as the doctor allows it; else only say how. notifier: tells who is named
    in the inventory. check: what a gang that serves is asked now and then. reread: asked again and again: an inventory
    that was read since, why it can't be used, or None; renewed: told of each that the guard goes on by."""

    gangs: tuple[str, ...] = ()
    once: bool = False
    policy: Policy = USUAL
    on_ready: Hook = NO_HOOK
    on_failed: Hook = NO_HOOK
    command: str = "guard"
    timeout_s: float = 3600.0
    hung_after_s: float | None = None
    restores: bool = False
    notifier: Notifies | None = None
    check: GuardCheck | None = None
    reread: Callable[[], Inventory | DeployError | None] = lambda: None
    renewed: Callable[[Inventory], object] = lambda _: None
