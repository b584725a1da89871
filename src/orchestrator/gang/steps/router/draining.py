"""The requests of a gang that was taken out of the router: waited for, counted aloud, and given up where it hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orchestrator.engines.registry import load_paths
from orchestrator.engines.serving import running_requests
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.router.client import POLL_S
from orchestrator.gang.steps.router.host import ask_from
from orchestrator.gang.steps.status.reports import see
from orchestrator.model.deadlines import DRAIN_S
from orchestrator.model.inventory import GangSpec
from orchestrator.model.words import counted
from orchestrator.protocol.errors import GangFailed
from orchestrator.protocol.verbs import HttpAnswer, HttpRequest
from orchestrator.remote.fleet import Fleet

LOAD_ASK_S = 5.0
"""For an engine's word on its load."""
SAY_EVERY_S = 30.0
"""The longest that nothing is said while requests run."""
LOOK_EVERY_S = 10.0
"""Between looks at whether the gang hangs: its requests would never end then."""


def requests_left(answers: Iterable[HttpAnswer]) -> int | None:
    """Requests that an engine has, by the first of its answers to `load_paths` that tells; None where none does."""
    counts = (running_requests(answer.body) for answer in answers if answer.ok)
    return next((count for count in counts if count is not None), None)


def wait_until_drained(fleet: Fleet, gang: GangSpec, url: str, watcher: Watcher) -> None:
    """Wait until no request is left of a gang that was taken out, or it hangs, so that none will end. Raises GangFailed
    after `DRAIN_S`; nothing was stopped then."""
    waiting = _Waiting(fleet, gang, watcher, looked_at=time.monotonic())
    if not requests_end(fleet, gang.leader.name, url, timeout_s=LOAD_ASK_S, goes_on=waiting.goes_on):
        raise GangFailed(
            f"still has running requests {DRAIN_S:.0f} s after it was removed from the router; nothing was stopped",
            where=f"gang {gang.name}",
            fix=f"run it again to wait on, or abort them with `l40s-deploy restart {gang.name} --now`",
        )


def requests_end(
    fleet: Fleet, node: str, url: str, *, timeout_s: float, goes_on: Callable[[int], bool] = lambda _left: True
) -> bool:
    """Whether two looks in a row, within DRAIN_S, see no request: one may be in flight when the router removes a gang.
    An engine that does not tell is left to its own drain, and so is one that is not waited for any longer.

    node: where the engine's URL is asked from; timeout_s: for each answer
    goes_on: called with the requests that a look saw; False: they are not waited for any longer
    """
    end, quiet = time.monotonic() + DRAIN_S, 0
    asks = [HttpRequest(url=f"{url}{path}", timeout_s=timeout_s) for path in load_paths()]
    while quiet < 2:
        left = requests_left(ask_from(fleet, node, asks))
        if left is None or (left and not goes_on(left)):
            return True
        quiet = 0 if left else quiet + 1
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


@dataclass
class _Waiting:
    """For one gang's requests: what is said meanwhile, and whether there is a point in it.

    looked_at, said_at: when it was last looked at, and spoken of, in monotonic seconds
    """

    fleet: Fleet
    gang: GangSpec
    watcher: Watcher
    looked_at: float
    said_at: float = float("-inf")

    def goes_on(self, left: int) -> bool:
        """Say how many requests still run, now and then; False where the gang hangs."""
        now = time.monotonic()
        if now - self.said_at >= SAY_EVERY_S:
            self.said_at = now
            runs = "runs" if left == 1 else "run"
            self.watcher.step(self.gang.name, f"{counted(left, 'request')} still {runs}")
        if now - self.looked_at < LOOK_EVERY_S:
            return True
        self.looked_at = now
        (view,) = see(self.fleet, [self.gang])
        if not view.stands_still:
            return True
        self.watcher.step(self.gang.name, f"it hangs, so that {counted(left, 'request')} can't end: not waited for")
        return False
