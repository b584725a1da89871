"""`restart --maintenance`: the work on a gang's nodes while the gang is stopped.

What is done to a node is the operator's: by hand, while this waits for its new boot, or by a command that is run for
one node after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps.checks import against_starts
from orchestrator.gang.steps.guard.notice_hook import run_command
from orchestrator.gang.steps.locks import take_again
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.replay import Staged
from orchestrator.gang.steps.restart import RestartRequest, RestartVerb
from orchestrator.model.deadlines import BOOT_S, SETTLE_S
from orchestrator.model.errors import DeployError, GangFailed, InputError, Unreachable
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

LOOK_EVERY_S = 2.0
_ASK = "cat /proc/sys/kernel/random/boot_id /proc/1/stat"


class ReturnState(str, Enum):
    """AWAY: does not answer. STILL: answers, but has not been away. BACK: there is nothing more to wait for."""

    AWAY = "away"
    STILL = "still"
    BACK = "back"


def boot_of(text: str) -> str | None:
    """What names one boot of a machine: the kernel's boot id and, if readable, the start time of process 1, which tells
    a container's. text: /proc/sys/kernel/random/boot_id and /proc/1/stat, one after the other (random(4), field 22 of
    proc(5)); None for anything else."""
    kernel, _, stat = text.partition("\n")
    fields = stat.rpartition(")")[2].split()
    return " ".join((kernel.strip(), *fields[19:20])) if kernel.strip() else None


def place(before: str | None, now: str | None, *, reboots: bool) -> ReturnState:
    """before: the boot when the gang had been stopped; now: None if the node does not answer; reboots: wait for a new
    boot, an answer is not enough."""
    if now is None:
        return ReturnState.AWAY
    return ReturnState.STILL if reboots and now == before else ReturnState.BACK


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesWork:
    """run: a command line on this machine, once a node, with L40S_NODE, L40S_HOST and L40S_GANG in its environment.
    reboots: wait for a new boot of each node; without `run` that is all there is to wait for.
    wait_s: for one gang's nodes."""

    fleet: Fleet
    watcher: Watcher
    run: str = ""
    reboots: bool = False
    wait_s: float = 3600.0

    def on_nodes(self, plan: Staged) -> None:
        """Have the nodes of a stopped gang, whose lock is held, worked on; return once its start may follow.

        Raises Unreachable and GangFailed where a node is not back in time or the command fails, FindingsError where the
        doctor forbids the start.
        """
        ends = time.monotonic() + self.wait_s
        names = [node.name for node in plan.gang.nodes]
        before = self.boots(names)
        if not self.run:
            self.watcher.step(
                plan.gang.name, f"it is stopped. Reboot {', '.join(names)} now; waiting up to {self.wait_s:.0f} s"
            )
            self._wait(plan.gang, names, before, ends)
        for node in plan.gang.nodes if self.run else ():
            self.watcher.step(plan.gang.name, f"the --run command for {node.name}")
            self._run(plan.gang, node, ends)
            self._wait(plan.gang, [node.name], before, ends)
        take_again(self.fleet, plan.gang)
        self._settle(plan)

    def boots(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """None for a node that does not answer."""

        def one(session: Session) -> str | None:
            return boot_of(session.run(_ASK, deadline_s=BOOT_S, become=False).out.decode("utf-8", "replace"))

        answers = self.fleet.on_every(one, only=names).values
        return {name: answers.get(name) for name in names}

    def _run(self, gang: GangSpec, node: NodeSpec, ends: float) -> None:
        """The operator's command for one node; what it started ends with it when its time is over."""
        about = {"L40S_NODE": node.name, "L40S_HOST": node.reach.host, "L40S_GANG": gang.name}
        try:
            status, last = run_command(self.run, about, max(1.0, ends - time.monotonic()), keep=2000, stdout_too=True)
        except OSError as failure:
            raise InputError(f"can't be run: {failure.strerror}", where="--run", fix="specify a program") from None
        if status != 0:
            how = f"status {status}" if status is not None and status > 0 else "a signal or a timeout"
            lines = "".join(f"\n    | {line}" for line in last.strip().splitlines()[-3:])
            raise GangFailed(
                f"the --run command ended with {how}{lines}",
                where=f"gang {gang.name}: {node.name}",
                fix="correct the command of --run",
            )

    def _wait(self, gang: GangSpec, names: Sequence[str], before: Mapping[str, str | None], ends: float) -> None:
        """Until each of these nodes is back."""
        reboots = self.reboots or not self.run
        known: dict[str, ReturnState] = dict.fromkeys(names, ReturnState.STILL)
        while True:
            now = self.boots(names)
            for name in names:
                where = place(before[name], now[name], reboots=reboots)
                if where is not known[name]:
                    state = "does not answer" if where is ReturnState.AWAY else "still answers"
                    self.watcher.step(gang.name, f"{name} {'is back' if where is ReturnState.BACK else state}")
                    known[name] = where
            late = [name for name in names if known[name] is not ReturnState.BACK]
            if not late:
                return
            if time.monotonic() > ends:
                raise _late(gang, late, known, self.wait_s)
            time.sleep(LOOK_EVERY_S)

    def _settle(self, plan: Staged) -> None:
        """Wait until doctor reports no stop finding."""
        self.watcher.step(plan.gang.name, "running doctor")
        ends = time.monotonic() + SETTLE_S
        while (against := against_starts(self.fleet, [plan], self.watcher)) is not None:
            if time.monotonic() > ends:
                raise against.error
            left = f"trying again for up to {ends - time.monotonic():.0f} s"
            self.watcher.step(plan.gang.name, f"{against.error.where}: {against.error.what}; {left}")
            time.sleep(LOOK_EVERY_S)


def _late(gang: GangSpec, late: Sequence[str], known: Mapping[str, ReturnState], wait_s: float) -> DeployError:
    away = [name for name in late if known[name] is ReturnState.AWAY]
    waited = f"within {wait_s:.0f} s"
    if away:
        return Unreachable(
            f"{', '.join(away)} did not come back {waited}",
            where=f"gang {gang.name}",
            fix=f"check power and network of {', '.join(away)}, then run `l40s-deploy doctor`",
        )
    return GangFailed(
        f"{', '.join(late)} answers but has not rebooted {waited}",
        where=f"gang {gang.name}",
        fix=f"reboot {', '.join(late)} (`sudo systemctl reboot` there), or use `--timeout` where a reboot takes longer",
    )


def _work(fleet: Fleet, request: RestartRequest, watcher: Watcher) -> Callable[[Staged], None]:
    work = NodesWork(fleet=fleet, watcher=watcher, run=request.run, reboots=request.reboots, wait_s=request.wait_s)
    return work.on_nodes


MAINTENANCE = RestartVerb(what=OperationKind.MAINTENANCE, done="worked on", work=_work)
