"""`sweep`: candidates one after the other on one gang: start, canary, accepted answers, benchmark, next.

What is kept after every load and what runs on the nodes decide what comes next (sweep/next_step.py), so that a sweep
that was interrupted or killed goes on with the same command. Candidates are never behind the router: no client reaches
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.bench.steps import bench
from orchestrator.engines.settings import NCCL_TRIALS, SAME_TEXT
from orchestrator.gang.claims import taking_turns
from orchestrator.gang.steps.down import DownRequest, down, refuse_leftovers
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.raising import Watcher, everybody_answers
from orchestrator.gang.steps.router.entry import stop_measured
from orchestrator.gang.steps.router.routing import withdraw
from orchestrator.gang.steps.up import asked_of, planned_again, up
from orchestrator.gang.steps.up_operation import UpRequest, UpResult
from orchestrator.gang.view import GangView
from orchestrator.golden.steps import golden
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.model.measured import CandidateResult, CandidateState, NetworkTrial, SweepRecord, best, speed
from orchestrator.model.plan import Plan
from orchestrator.model.profile import Load
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.verdict import ENOUGH
from orchestrator.protocol.errors import (
    DeployError,
    Disturbed,
    FindingsError,
    GangFailed,
    InputError,
    NodeError,
    RunsElsewhere,
    VerificationDiffers,
)
from orchestrator.protocol.staging import Asked
from orchestrator.records.sweeps import keep_sweep, sweep_that_started
from orchestrator.sweep.budget import CUT, took
from orchestrator.sweep.network import trial_of
from orchestrator.sweep.next_step import Running, SweepStep, SweepStepKind, ended_with, next_step, with_result
from orchestrator.sweep.noise import enough, point_of
from orchestrator.sweep.steps.plans import PlannedSweep, SweepOptions, alone, up_request
from orchestrator.sweep.steps.turn import SweepTurn, sweep_turn

Progress = Callable[[str, int, int], None]
OF_THE_CANDIDATE = (FindingsError, GangFailed, InputError, NodeError, VerificationDiffers)
"""What a candidate may fail with; a node that does not answer, a held lock and an interruption end the sweep."""
OF_OTHERS = (Disturbed, RunsElsewhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepScreen:
    """Who is told: lines, measurements as they go on, starts, and each candidate once it is over."""

    say: Callable[[str], None]
    ended: Callable[[CandidateResult], None]
    counting: Callable[[str], AbstractContextManager[Progress]]
    rising: Callable[[], AbstractContextManager[Watcher]]


def sweep(
    inventory: Inventory, gang: GangSpec, begun: PlannedSweep, options: SweepOptions, screen: SweepScreen
) -> SweepRecord:
    """Measure what waits, then leave the gang as it was, or with the best; the record of it.

    Raises InputError where something serves that may not be stopped, GangFailed where what served before does not come
    up, and what ends a sweep early; what was measured is kept in any case.
    """
    with sweep_turn(inventory, gang.name, options.command, options.timeout_s) as turn:
        run = _Sweep(inventory, gang, options, screen, turn, begun.record, begun.seconds)
        run.go_on()
        while run.step():
            pass
    return run.record


def untried(record: SweepRecord, options: SweepOptions) -> list[str]:
    """Names of the trials of the network that are still to come: nothing to compare with is left where the plan's own
    settings could not be tested."""
    waits = any(result.waits for result in record.results)
    wanted = waits if options.network is None else options.network
    usual = next((trial for trial in record.trials if not trial.env), None)
    if not wanted or (usual is not None and usual.cause):
        return []
    done = {trial.name for trial in record.trials}
    return [name for name in NCCL_TRIALS if name not in done]


@dataclass
class _Sweep:
    """turn: behind the router, held from the stop of what served, or the first start, until it, or the best, serves
    again
    seconds: that each candidate will take, by id; began: of this call, for the budget
    ended_before: the run that had ended when this step began: nobody has stopped it since"""

    inventory: Inventory
    gang: GangSpec
    options: SweepOptions
    screen: SweepScreen
    turn: SweepTurn
    record: SweepRecord
    seconds: Mapping[str, float]
    began: float = field(default_factory=time.monotonic)
    ended_before: str = ""

    def go_on(self) -> None:
        """Where an earlier call has taken out what served: others wait for this one again."""
        if self.record.before is not None:
            self._announce()

    def _announce(self) -> None:
        """Have the turn if it is free: no other command counts on a candidate, adds it to the router or takes another
        gang out beside it."""
        if not self.turn.token and taking_turns(self.inventory):
            with self.screen.rising() as watcher:
                self.turn.announce(watcher)

    def step(self) -> bool:
        """Take the next step; False once nothing is left to do."""
        view = self._look()
        self.ended_before = "" if view.running else view.run_id
        running = Running(view.plan_id if view.running else "", view.serves)
        step = next_step(
            self.record,
            running,
            keep_best=self.options.keep_best,
            replaces=self.options.replaces,
            tries=bool(untried(self.record, self.options)),
        )
        match step.do:
            case SweepStepKind.REFUSE:
                raise self._refused(view)
            case SweepStepKind.STOP:
                self._stop(view)
            case SweepStepKind.TRY:
                self._try_network(untried(self.record, self.options)[0])
            case SweepStepKind.MEASURE:
                self._measure(step)
            case SweepStepKind.KEEP:
                self._keep_best(step)
            case SweepStepKind.RETURN:
                self._return()
            case SweepStepKind.DONE:
                kept = ended_with(self.record, running, keep_best=self.options.keep_best)
                self._keep(replace(self.record, started=(), before=None, before_plan="", kept=kept))
        return step.do is not SweepStepKind.DONE

    def _look(self) -> GangView:
        with connected(alone(self.inventory, self.gang)) as operation:
            (view,) = operation.look()
        everybody_answers([view])
        return view

    def _keep(self, record: SweepRecord) -> None:
        self.record = replace(record, at=time.time())
        keep_sweep(self.record)

    def _keep_result(self, result: CandidateResult) -> None:
        self._keep(with_result(self.record, result))

    def _refused(self, view: GangView) -> InputError:
        return InputError(
            f"it runs plan {view.plan_id} ({view.model}), which a sweep stops: it would serve no requests meanwhile",
            where=f"gang {self.gang.name}",
            fix="run the same command with --replace; it ends with the plan that serves now, or with --keep best",
        )

    def _stop(self, view: GangView) -> None:
        """What somebody else has started is remembered, and leaves the router first."""
        if view.plan_id in self.record.started:
            self._stop_candidate()
            return
        with self.screen.rising() as watcher:
            self.turn.wait(watcher)
        view = self._look()  # what was seen before the wait may have been changed since
        if not view.running:
            return
        if (other := sweep_that_started(view.plan_id, self.record)) is not None:
            self._take_over(other, view.plan_id)
            return
        self._keep(replace(self.record, before=self._asked(), before_plan=view.plan_id, kept=""))
        self._say_others()
        with self.screen.rising() as watcher, connected(self.inventory) as operation:
            name = self.gang.name
            request = DownRequest(gangs=(name,), command=self.options.command)
            leave = partial(withdraw, operation, (name,), partial(self._say_alone, watcher))
            # before the stop, under its lock: a gang that somebody else holds stays in the router
            refuse_leftovers(down(operation, request, before_stop=leave))

    def _take_over(self, other: SweepRecord, plan_id: str) -> None:
        """A candidate of another sweep that did not end is nobody's service: what that one stopped serves again."""
        then = f"; at the end serves what that one has stopped, plan {other.before_plan}" if other.before else ""
        self.screen.say(f"{self.gang.name}: plan {plan_id} is a candidate of another sweep, which did not end{then}")
        started = (*self.record.started, plan_id)
        mine = replace(self.record, before=other.before, before_plan=other.before_plan, started=started, kept="")
        self._keep(mine)  # first: killed in between, both know it
        keep_sweep(replace(other, before=None, before_plan="", started=()))

    def _say_alone(self, watcher: Watcher, last: Collection[str]) -> None:
        """Before its requests fail."""
        if last:
            watcher.step(self.gang.name, "it served alone behind the router: requests fail until the sweep ends")

    def _asked(self) -> Asked:
        with connected(alone(self.inventory, self.gang)) as operation:
            (gang,) = operation.as_they_run([self.gang])
            return asked_of(operation.fleet, gang)

    def _say_others(self) -> None:
        others = [gang.name for gang in taking_turns(self.inventory) if gang.name != self.gang.name]
        if others:
            self.screen.say(f"{self.gang.name} is measured; {', '.join(others)} goes on serving behind the router")

    def _stop_candidate(self) -> None:
        with connected(self.inventory) as operation:
            stop_measured(operation, self.gang.name, self.options.command, self.screen.say)

    def _try_network(self, name: str) -> None:
        """All-reduces with these variables in the nodes' environment. What the plan itself has is a test as any other:
        plans use it."""
        env = NCCL_TRIALS[name]
        gang = replace(self.gang, nodes=tuple(_with_env(node, env) for node in self.gang.nodes))
        order = nettest.NettestOptions(
            gangs=(gang.name,),
            model=self.options.models[0],
            stack=self.options.stack or self.record.stack,
            enough=ENOUGH,
            command=self.options.command,
            kept=not env,
        )
        try:
            with (
                connected(alone(self.inventory, gang)) as operation,
                self.screen.counting(f"measurements with NCCL {name}") as at,
            ):
                (tested,) = nettest.run_now(operation, order, at)
            trial = trial_of(name, env, tested.record)
        except OF_OTHERS:
            raise
        except OF_THE_CANDIDATE as failure:
            if self._look().running:
                raise
            trial = NetworkTrial(name=name, env=env, cause=failure.what.partition("\n")[0])
        self._keep(replace(self.record, trials=(*self.record.trials, trial)))

    def _measure(self, step: SweepStep) -> None:
        assert step.result is not None
        if self._over_budget(step.result):
            return
        began, before = time.monotonic(), step.result.seconds
        try:
            measured = self._measured(step.result)
        except OF_OTHERS:
            raise
        except OF_THE_CANDIDATE as failure:
            measured = self._failed(step.result, failure)
        ended = replace(measured, seconds=round(before + time.monotonic() - began, 1))
        self._keep_result(ended)
        self.screen.ended(ended)

    def _over_budget(self, result: CandidateResult) -> bool:
        """What does not fit into what is left of the budget is cut; the first candidate was let through before."""
        budget_s, gone = self.options.budget_s, time.monotonic() - self.began
        takes = took(self.record.results) or self.seconds.get(result.candidate.id, 0.0)
        if budget_s is None or gone + takes <= budget_s:
            return False
        left = f"{max(budget_s - gone, 0.0):.0f} s are left"
        self._keep_result(replace(result, cause=f"{CUT}: it takes about {takes:.0f} s, and {left}"))
        return True

    def _measured(self, result: CandidateResult) -> CandidateResult:
        """Started, asked for its accepted answers, and measured at every load that is not measured yet."""
        self._announce()
        self.screen.say(f"{result.candidate.id}: starting")
        result = self._started(result)
        self._check_answers(result)
        for requests in self.record.load.requests:
            if result.point(requests) is None:
                result = self._at_load(result, requests)
                self._keep_result(result)
        return replace(result, state=CandidateState.MEASURED, cause="")

    def _started(self, result: CandidateResult) -> CandidateResult:
        request = up_request(self.record, result, self.options)
        with self.screen.rising() as shown, connected(alone(self.inventory, self.gang)) as operation:
            outcome = up(operation.asked(), request, _Noting(shown, self._note_start))
        start_s = result.start_s if outcome.ready_before else round(outcome.seconds, 1)
        result = replace(result, plan_id=outcome.plan.plan_id, start_s=start_s)
        self._keep_result(result)
        return result

    def _note_start(self, plan: Plan) -> None:
        """Before anything of it runs: what is not among `started` is somebody else's."""
        self._keep(replace(self.record, started=tuple(dict.fromkeys((*self.record.started, plan.plan_id)))))

    def _check_answers(self, result: CandidateResult) -> None:
        """Where answers were accepted for this stack and layout, and the settings leave the arithmetic alone."""
        if not SAME_TEXT.issuperset(result.candidate.settings):
            return
        with connected(alone(self.inventory, self.gang)) as operation, self.screen.counting("prompts asked") as at:
            checked = golden.check_gang(operation.fleet, self.gang, at)
        if finding := checked.finding:
            raise VerificationDiffers(f"{finding.id}: {finding.title}", where=f"gang {self.gang.name}", fix=finding.fix)

    def _at_load(self, result: CandidateResult, requests: int) -> CandidateResult:
        load, fastest = self.record.load, best(self.record.results, requests)
        top = speed(fastest, requests) if fastest is not None else 0.0
        order = bench.BenchOptions(
            gangs=(self.gang.name,),
            load=Load(
                input=load.input,
                output=load.output,
                prompts=requests,
                concurrency=requests,
                rate=bench.ALL_AT_ONCE,
            ),
            timeout_s=self.options.timeout_s,
            dataset=self.options.dataset,
            enough=lambda runs: enough(runs, top),
        )
        with (
            connected(alone(self.inventory, self.gang)) as operation,
            self.screen.counting("requests answered") as at,
        ):
            words = f"{result.candidate.id}, {requests} at once"
            done = bench.run_now(operation, order, lambda what, n, of: at(f"{words}, {what}", n, of))
        point = point_of(requests, done.record["serving"], done.record["runs"])
        stand_in = result.stand_in or bool(done.record["stand_in"])
        return replace(result, points=(*result.points, point), stand_in=stand_in)

    def _is_anothers(self, failure: DeployError, view: GangView, result: CandidateResult) -> bool:
        """Whether somebody else's doing has failed it: another plan, requests, a client's file, a stop by a person."""
        other_plan = view.running and view.plan_id not in self.record.started
        refused_while_serving = isinstance(failure, InputError) and view.serves
        stopped = bool(view.ordered) and not view.running and view.plan_id == result.plan_id
        return other_plan or refused_while_serving or (stopped and view.run_id != self.ended_before)

    def _failed(self, result: CandidateResult, failure: DeployError) -> CandidateResult:
        """With its cause, and nothing of it left. Raises the failure where it is not the candidate's own: a node does
        not answer, or somebody has stopped the gang or started another plan."""
        result = next(kept for kept in self.record.results if kept.candidate.id == result.candidate.id)
        view = self._look()
        if self._is_anothers(failure, view, result):
            raise failure
        cause = failure.what
        if view.state is GangState.FAILED and view.cause is not None and not isinstance(failure, GangFailed):
            cause = f"{view.cause.text} ({view.cause.node}); {cause}"
        if view.running:
            self._stop_candidate()
        return replace(result, state=CandidateState.FAILED, cause=cause.partition("\n")[0])

    def _keep_best(self, step: SweepStep) -> None:
        assert step.result is not None
        candidate = step.result.candidate.id
        self.screen.say(f"{self.gang.name}: serving the best, {candidate}")
        try:
            outcome = self._served(self.inventory, up_request(self.record, step.result, self.options))
        except OF_OTHERS:
            raise
        except OF_THE_CANDIDATE as failure:
            ended = self._failed(step.result, failure)
            self.screen.say(f"{self.gang.name}: {candidate} does not come up again: {ended.cause}")
            self._keep_result(ended)  # the next best, or what served before
            return
        if outcome.failure is not None:
            raise outcome.failure

    def _return(self) -> None:
        asked = self.record.before
        assert asked is not None
        self.screen.say(f"{self.gang.name}: returning to what it served before, plan {self.record.before_plan}")
        inventory, plan = planned_again(self.inventory, self.gang, asked)
        request = UpRequest(
            plan=plan, command=self.options.command, timeout_s=self.options.timeout_s, accept=asked.accept
        )
        outcome = self._served(inventory, request)
        if outcome.failure is not None:
            raise outcome.failure

    def _served(self, inventory: Inventory, request: UpRequest) -> UpResult:
        """Behind the router again. From here on it is no candidate that may be stopped."""
        self._keep(replace(self.record, started=()))
        with self.screen.rising() as shown, connected(inventory) as operation:
            return up(operation.asked(), replace(request, turn=self.turn.token), shown)


def _with_env(node: NodeSpec, env: Mapping[str, str]) -> NodeSpec:
    """As if its l40s_env had these too."""
    overrides = replace(node.overrides, env=(*node.overrides.env, *env.items()))
    return replace(node, overrides=overrides)


@dataclass(frozen=True, slots=True)
class _Noting:
    """A watcher that tells the plan that is about to start, before it shows it."""

    shown: Watcher
    note: Callable[[Plan], None]

    def planned(self, plan: Plan) -> None:
        """The plan is made; nothing is changed yet."""
        self.note(plan)
        self.shown.planned(plan)

    def step(self, gang: str, words: str) -> None:
        """A step begins."""
        self.shown.step(gang, words)

    def seen(self, views: Sequence[GangView]) -> None:
        """The gangs were examined again."""
        self.shown.seen(views)
