"""`restart --maintenance`: stops a gang, waits for work on its nodes, and starts it again with its plan.

Gang by gang: where others serve behind the router, requests go there meanwhile. What is done to a node is the
operator's: by hand, while this waits for its new boot, or by a command that is run for one node after the other.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from orchestrator.gang.downtime import expected_downtime
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.returning import Boot, ReturnState, boot_of, place
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import against_starts, refuse_starts
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.locks import GangLock, take_again
from orchestrator.gang.steps.operation import Operation, kept
from orchestrator.gang.steps.replay import Staged, staged_plan
from orchestrator.gang.steps.restart import RestartResult, RestartWatcher
from orchestrator.gang.steps.restart_sequence import Address, GangRestart, RestartSequence, RestartStep
from orchestrator.gang.steps.router.routing import Router, take_in_serving
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import BOOT_S, SETTLE_S
from orchestrator.model.errors import DeployError, FindingsError, GangFailed, InputError, NodeError, Unreachable
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session

LOOK_EVERY_S = 2.0
_ASK = "cat /proc/sys/kernel/random/boot_id /proc/1/stat"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """run: a command line on this machine, once a node, with L40S_NODE, L40S_HOST and L40S_GANG in its environment.
    reboots: wait for a new boot of each node; without `run` that is all there is to wait for.
    wait_s: for one gang's nodes; drain_s: for its requests; timeout_s: for its start."""

    gangs: tuple[str, ...] = ()
    run: str = ""
    reboots: bool = False
    wait_s: float = 3600.0
    now: bool = False
    drain_s: float = 1800.0
    hung_after_s: float | None = None
    """For the start: how long its engine may show no progress before it counts as hung; None: as it was."""
    timeout_s: float = 3600.0
    accept: tuple[str, ...] = ()
    """Findings that do not forbid the stop, `ID` or `ID@node`; they count again once the work is done."""
    command: str = "restart --maintenance"

    def __post_init__(self) -> None:
        """Raises InputError for a command line whose quotes are open."""
        try:
            shlex.split(self.run)
        except ValueError as wrong:
            raise InputError(f"can't be parsed: {wrong}", where="--run", fix="close the quotes") from None


def maintain(inventory: Inventory, request: MaintenanceRequest, watcher: RestartWatcher) -> RestartResult:
    """Have the chosen gangs worked on, one after the other.

    Raises before anything is stopped: Unreachable, InputError where there is no plan to start again, LockHeld, what the
    checks of the starts refuse.
    Later, with words on how to go on: Unreachable and GangFailed where a node is not back in time or the command
    fails, FindingsError where the doctor forbids the start, what a start raises.
    """
    begin = time.monotonic()
    gangs = chosen_gangs(inventory, request.gangs)
    with Fleet(inventory.nodes) as fleet, ExitStack() as opened:
        gangs = as_they_run(fleet, gangs)
        raising.everybody_answers(see(fleet, gangs))
        plans = [staged_plan(fleet, gang).hung_after(request.hung_after_s) for gang in gangs]
        router = opened.enter_context(_router(inventory))
        locks = [opened.enter_context(GangLock(fleet, gang, request.command, why="maintenance")) for gang in gangs]
        _refuse(fleet, plans, request, watcher)
        with Operation(
            OperationKind.MAINTENANCE, request.command, see(fleet, gangs), locks, kept(request)
        ) as operation:
            turns = RestartSequence(fleet, router, watcher, operation)
            views = tuple(
                _one(
                    _Work(inventory=inventory, fleet=fleet, plan=plan, request=request, watcher=watcher),
                    turns,
                    plans[number + 1 :],
                )
                for number, plan in enumerate(plans)
            )
        return RestartResult(views=views, down_s=time.monotonic() - begin)


def _refuse(fleet: Fleet, plans: Sequence[Staged], request: MaintenanceRequest, watcher: RestartWatcher) -> None:
    """Raise what forbids the start that follows the work, unless that is accepted."""
    try:
        refuse_starts(fleet, plans, watcher, accept=request.accept)
    except (FindingsError, NodeError) as refused:
        names = " ".join(plan.gang.name for plan in plans)
        refused.fix += (
            f"; if this work repairs it, and it can't be accepted: `l40s-deploy down {names}`, and after"
            f" the work `l40s-deploy restart {names}`"
        )
        raise


@contextmanager
def _router(inventory: Inventory) -> Iterator[Router | None]:
    """The router, where one serves and there is another gang to send requests to."""
    if inventory.router is None or len(inventory.gangs) < 2:
        yield None
        return
    with Router(inventory.router) as router:
        yield router if router.state().view.service_healthy else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One gang's maintenance."""

    inventory: Inventory
    fleet: Fleet
    plan: Staged
    request: MaintenanceRequest
    watcher: RestartWatcher

    @property
    def gang(self) -> GangSpec:
        return self.plan.gang

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.plan.gang.nodes]

    def say(self, words: str) -> None:
        self.watcher.step(self.gang.name, words)

    def boots(self, names: Sequence[str]) -> Mapping[str, Boot | None]:
        """None for a node that does not answer."""

        def one(session: Session) -> Boot | None:
            return boot_of(session.run(_ASK, deadline_s=BOOT_S, become=False).out.decode("utf-8", "replace"))

        answers = self.fleet.on_every(one, only=names).values
        return {name: answers.get(name) for name in names}


def _one(work: _Work, turns: RestartSequence, later: Sequence[Staged]) -> GangView:
    (view,) = see(work.fleet, [work.gang])
    work.watcher.downtime(expected_downtime(view, 0.0 if work.request.now else work.plan.drain_s))
    if turns.router is not None:
        _send_elsewhere(work, turns.router)
    before = work.boots(work.names)

    def done_to_nodes() -> None:
        _work_on_nodes(work, before)
        take_again(work.fleet, work.gang)
        _settled(work)

    def failed(step: RestartStep) -> str:
        return "" if step is RestartStep.ASIDE else _how_to_go_on(work, later, serves=step is RestartStep.BACK)

    def left(step: RestartStep) -> str:
        if step is RestartStep.START:
            return f"{work.gang.name} is starting; `l40s-deploy restart --resume` adds it to the router"
        return failed(step)

    turn = GangRestart(
        places=(Address(gang=work.gang, url=work.plan.service_url, serving=bool(view.service_healthy)),),
        start=(work.plan.rising(of_now=facts_of_now(work.fleet, work.watcher)),),
        now=work.request.now,
        drain_s=work.request.drain_s,
        timeout_s=work.request.timeout_s,
        check=lambda: _refuse(work.fleet, [work.plan], work.request, work.watcher),
        work=done_to_nodes,
        failed=failed,
        left=left,
    )
    return turns.take(turn).views[0]


def _send_elsewhere(work: _Work, router: Router) -> None:
    """The router knows every other gang that could answer meanwhile; where there is none, that is said."""
    if not take_in_serving(router, work.fleet, work.inventory, work.watcher) - {work.gang.name}:
        work.say("no other gang serves behind the router: requests fail until this one is back")


def _work_on_nodes(work: _Work, before: Mapping[str, Boot | None]) -> None:
    ends = time.monotonic() + work.request.wait_s
    if not work.request.run:
        work.say(f"it is stopped. Reboot {', '.join(work.names)} now; waiting up to {work.request.wait_s:.0f} s")
        _wait(work, work.names, before, ends)
        return
    for node in work.gang.nodes:
        work.say(f"the --run command for {node.name}")
        _run(work, node, ends)
        _wait(work, [node.name], before, ends)


def _run(work: _Work, node: NodeSpec, ends: float) -> None:
    """The operator's command for one node; what it started ends with it when its time is over."""
    about = {"L40S_NODE": node.name, "L40S_HOST": node.reach.host, "L40S_GANG": work.gang.name}
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                shlex.split(work.request.run),
                env={**os.environ, **about},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as failure:
            raise InputError(f"can't be run: {failure.strerror}", where="--run", fix="specify a program") from None
        try:
            status = process.wait(max(1.0, ends - time.monotonic()))
        except BaseException as ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(ended, subprocess.TimeoutExpired):
                raise
            status = -signal.SIGKILL
        said.seek(0, os.SEEK_END)
        said.seek(max(0, said.tell() - 2000))
        last = said.read().decode("utf-8", "replace").strip().splitlines()[-3:]
    if status:
        how = f"status {status}" if status > 0 else "a signal or a timeout"
        lines = "".join(f"\n    | {line}" for line in last)
        raise GangFailed(
            f"the --run command ended with {how}{lines}",
            where=f"gang {work.gang.name}: {node.name}",
            fix="correct the command of --run",
        )


def _wait(work: _Work, names: Sequence[str], before: Mapping[str, Boot | None], ends: float) -> None:
    """Until each of these nodes is back."""
    reboots = work.request.reboots or not work.request.run
    known: dict[str, ReturnState] = dict.fromkeys(names, ReturnState.STILL)
    while True:
        now = work.boots(names)
        for name in names:
            where = place(before[name], now[name], reboots=reboots)
            if where is not known[name]:
                state = "does not answer" if where is ReturnState.AWAY else "still answers"
                work.say(f"{name} {'is back' if where is ReturnState.BACK else state}")
                known[name] = where
        late = [name for name in names if known[name] is not ReturnState.BACK]
        if not late:
            return
        if time.monotonic() > ends:
            raise _late(work, late, known)
        time.sleep(LOOK_EVERY_S)


def _late(work: _Work, late: Sequence[str], known: Mapping[str, ReturnState]) -> DeployError:
    away = [name for name in late if known[name] is ReturnState.AWAY]
    waited = f"within {work.request.wait_s:.0f} s"
    if away:
        return Unreachable(
            f"{', '.join(away)} did not come back {waited}",
            where=f"gang {work.gang.name}",
            fix=f"check power and network of {', '.join(away)}, then run `l40s-deploy doctor`",
        )
    return GangFailed(
        f"{', '.join(late)} answers but has not rebooted {waited}",
        where=f"gang {work.gang.name}",
        fix=f"reboot {', '.join(late)} (`sudo systemctl reboot` there), or use `--wait-s` where a reboot takes longer",
    )


def _settled(work: _Work) -> None:
    """Wait until doctor reports no stop finding."""
    work.say("running doctor")
    ends = time.monotonic() + SETTLE_S
    while (against := against_starts(work.fleet, [work.plan], work.watcher)) is not None:
        if time.monotonic() > ends:
            raise against.error
        work.say(f"{against.error.where}: {against.error.what}; trying again for up to {ends - time.monotonic():.0f} s")
        time.sleep(LOOK_EVERY_S)


def _how_to_go_on(work: _Work, later: Sequence[Staged], *, serves: bool) -> str:
    name = work.gang.name
    words = f"{name} is stopped; start it again with `l40s-deploy restart {name}`"
    if serves:
        words = f"{name} serves again, but may not be in the router; `l40s-deploy router up` adds it"
    if not later:
        return words
    rest = " ".join(plan.gang.name for plan in later)
    return f"{words}; not done: continue with `l40s-deploy restart --maintenance {rest}`"
