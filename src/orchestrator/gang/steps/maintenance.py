"""`restart --maintenance`: the work on a gang's nodes while the gang is stopped.

What is done to a node is the operator's: by hand, while this waits for its new boot, or by a command that is run for
one node after the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps.checks import against_starts
from orchestrator.gang.steps.guard.notice_hook import run_command
from orchestrator.gang.steps.locks import take_again
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.restart_sequence import RestartRequest, RestartVerb
from orchestrator.gang.steps.staging import Staged
from orchestrator.model.deadlines import BOOT_S, SETTLE_S
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.protocol.errors import DeployError, GangFailed, InputError, Unreachable
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

LOOK_EVERY_S = 2.0
_ASK = "cat /proc/sys/kernel/random/boot_id /proc/1/stat"
AWAY, STILL, BACK = "does not answer", "still answers", "is back"
"""Where a node is; still: it has not been away; back: there is nothing more to wait for."""


def boot_of(text: str) -> str | None:
    """What names one boot of a machine: the kernel's boot id and, if readable, the start time of process 1, which tells
    a container's. text: /proc/sys/kernel/random/boot_id and /proc/1/stat, one after the other (random(4), field 22 of
    proc(5)); None for anything else."""
    kernel, _, stat = text.partition("\n")
    fields = stat.rpartition(")")[2].split()
    return " ".join((kernel.strip(), *fields[19:20])) if kernel.strip() else None


def place(before: str | None, now: str | None, *, reboots: bool) -> str:
    """before: the boot when the gang had been stopped; now: None if the node does not answer; reboots: wait for a new
    boot, an answer is not enough."""
    if now is None:
        return AWAY
    return STILL if reboots and now == before else BACK


def boots(fleet: Fleet, names: Sequence[str]) -> Mapping[str, str | None]:
    """None for a node that does not answer."""

    def one(session: Session) -> str | None:
        return boot_of(session.run(_ASK, deadline_s=BOOT_S, become=False).out.decode("utf-8", "replace"))

    answers = fleet.on_every(one, only=names).values
    return {name: answers.get(name) for name in names}


def work_on_nodes(fleet: Fleet, request: RestartRequest, watcher: Watcher, plan: Staged) -> None:
    """Have the nodes of a stopped gang, whose lock is held, worked on; return once its start may follow.

    Raises Unreachable and GangFailed where a node is not back in time or the command fails, FindingsError where the
    doctor forbids the start.
    """
    gang, names = plan.gang, [node.name for node in plan.gang.nodes]
    work = _Work(fleet, request, watcher, gang, boots(fleet, names), time.monotonic() + request.wait_s)
    if not request.run:
        watcher.step(gang.name, f"it is stopped. Reboot {', '.join(names)} now; waiting up to {request.wait_s:.0f} s")
        work.wait_for(names)
    for node in gang.nodes if request.run else ():
        watcher.step(gang.name, f"the --run command for {node.name}")
        work.run(node)
        work.wait_for([node.name])
    take_again(fleet, gang)
    watcher.step(gang.name, "running doctor")
    ends = time.monotonic() + SETTLE_S
    while (against := against_starts(fleet, [plan], watcher)) is not None:
        if time.monotonic() > ends:
            raise against.error
        left = f"trying again for up to {ends - time.monotonic():.0f} s"
        watcher.step(gang.name, f"{against.error.where}: {against.error.what}; {left}")
        time.sleep(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class _Work:
    """before: each node's boot when the gang had been stopped. ends: monotonic seconds."""

    fleet: Fleet
    request: RestartRequest
    watcher: Watcher
    gang: GangSpec
    before: Mapping[str, str | None]
    ends: float

    def run(self, node: NodeSpec) -> None:
        """The operator's command for one node; what it started ends with it when its time is over."""
        about = {"L40S_NODE": node.name, "L40S_HOST": node.reach.host, "L40S_GANG": self.gang.name}
        left_s = max(1.0, self.ends - time.monotonic())
        try:
            status, last = run_command(self.request.run, about, left_s, keep=2000, stdout_too=True)
        except OSError as failure:
            raise InputError(f"can't be run: {failure.strerror}", where="--run", fix="specify a program") from None
        if status != 0:
            how = f"status {status}" if status is not None and status > 0 else "a signal or a timeout"
            lines = "".join(f"\n    | {line}" for line in last.strip().splitlines()[-3:])
            raise GangFailed(
                f"the --run command ended with {how}{lines}",
                where=f"gang {self.gang.name}: {node.name}",
                fix="correct the command of --run",
            )

    def wait_for(self, names: Sequence[str]) -> None:
        """Until each of these nodes is back."""
        reboots = self.request.reboots or not self.request.run
        known = dict.fromkeys(names, STILL)
        while True:
            now = boots(self.fleet, names)
            for name in names:
                if (at := place(self.before[name], now[name], reboots=reboots)) != known[name]:
                    self.watcher.step(self.gang.name, f"{name} {at}")
                    known[name] = at
            if all(at == BACK for at in known.values()):
                return
            if time.monotonic() > self.ends:
                raise self._late(known)
            time.sleep(LOOK_EVERY_S)

    def _late(self, known: Mapping[str, str]) -> DeployError:
        where, waited = f"gang {self.gang.name}", f"within {self.request.wait_s:.0f} s"
        if away := ", ".join(name for name, at in known.items() if at == AWAY):
            fix = f"check power and network of {away}, then run `l40s-deploy doctor`"
            return Unreachable(f"{away} did not come back {waited}", where=where, fix=fix)
        late = ", ".join(name for name, at in known.items() if at == STILL)
        return GangFailed(
            f"{late} answers but has not rebooted {waited}",
            where=where,
            fix=f"reboot {late} (`sudo systemctl reboot` there), or use `--timeout` where a reboot takes longer",
        )


MAINTENANCE = RestartVerb(what=OperationKind.MAINTENANCE, done="worked on", work=work_on_nodes)
