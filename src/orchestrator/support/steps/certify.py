"""`certify`: one gang from the look at its machines to a killed rank and the restart, written down for others.

It starts the gang itself, and stops what it has started, whatever happens. Requests of others never reach it: it is not
entered into the router.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.bench.steps import bench, bench_report
from orchestrator.bench.verdict import BenchVerdict, gravest
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps.examination import examine_inventory
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.restart import RestartResult, restart
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.steps.router.entry import stop_measured
from orchestrator.gang.steps.router.routing import is_entered
from orchestrator.gang.steps.standing import runs_in
from orchestrator.gang.steps.status.reports import everything
from orchestrator.gang.steps.up import up
from orchestrator.gang.steps.up_operation import UpRequest, UpResult
from orchestrator.gang.view import GangView
from orchestrator.loading.profiles import load_profile
from orchestrator.model.deadlines import KERNELS_S
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.model.profile import Load
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.verdict import ENOUGH, NettestVerdict
from orchestrator.planning import prediction
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import (
    DeployError,
    Exit,
    GangFailed,
    InputError,
    LockHeld,
    NodeError,
    VerificationDiffers,
)
from orchestrator.protocol.report import Cause
from orchestrator.protocol.severity import Severity
from orchestrator.records.documents import expect_writable, write_document
from orchestrator.remote.fleet import Fleet
from orchestrator.support.steps.bundle import KEY_BYTES, scrubber_of
from orchestrator.topology.draw import topology_json
from orchestrator.tuning.kernels import KernelVerdict
from orchestrator.tuning.steps import kernels

AT_ONCE = (1, 4, 32, 128)
"""Requests: the articles' decode table."""
SEEN_S, LOOK_S = 120.0, 0.2
"""How long the failure that a kill is may take to be reported, and how often it is looked for."""
KILL_S = 10.0
NOT_TRIED = (InputError, NodeError)
"""What says that a measurement could not be made on these nodes, rather than what it found."""
FORMAT = 1
STEPS = ("discover", "stack check", "nettest", "up", "bench", "kill", "restart")
"""In their order."""


class StepVerdict(str, Enum):
    """Of one step. DIFFERS: slow, or not as planned, and the next steps run; WRONG: wrong results: no rank is started,
    and none killed; NOT_RUN: it could not be tried, so nothing is known; FAILED: it ended with an error"""

    OK = "ok"
    DIFFERS = "differs"
    NOT_RUN = "not-run"
    WRONG = "wrong"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def ends(self) -> bool:
        """No further step is taken."""
        return self in (StepVerdict.WRONG, StepVerdict.FAILED, StepVerdict.INTERRUPTED)


CertifiedStep = Mapping[str, Any]
"""One step's document: name, verdict, seconds; result: the document of its verb, with its digest; error: what, where
and fix where it has none."""


def certified_step(
    name: str,
    verdict: StepVerdict,
    seconds: float,
    *,
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, str] | None = None,
) -> CertifiedStep:
    """As it is written down."""
    document = {"name": name, "verdict": verdict.value, "seconds": round(seconds, 1), "error": error}
    return {**document, "digest": digest(result), "result": result}


def overall(steps: Sequence[CertifiedStep]) -> StepVerdict:
    """The gravest, in the order of StepVerdict; NOT_RUN at least where steps are missing."""
    order = list(StepVerdict)
    verdicts = [StepVerdict(step["verdict"]) for step in steps]
    if len(steps) < len(STEPS):
        verdicts.append(StepVerdict.NOT_RUN)
    return max(verdicts, key=order.index)


def exit_code(verdict: StepVerdict) -> int:
    """7 where something is wrong, slow or not as planned, 3 where a step could not be run. An error has its own."""
    return {StepVerdict.OK: Exit.DONE, StepVerdict.NOT_RUN: Exit.FINDINGS}.get(verdict, Exit.DIFFERS)


def certificate(about: Mapping[str, Any], steps: Sequence[CertifiedStep]) -> dict[str, Any]:
    """The document of `certify`; its `digest` is that of all other keys.

    about: the version, when, what ran on what; its `stand_in` is true where something emulated or an engine without
    GPUs answered, None where that is not known
    """
    document = {
        "format": FORMAT,
        **about,
        "verdict": overall(steps).value,
        "complete": len(steps) == len(STEPS) and not any(StepVerdict(done_step["verdict"]).ends for done_step in steps),
        "steps": [*steps],
    }
    return {**document, "digest": digest(document)}


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in one spelling: sorted keys, no spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


Progress = Callable[[str, int, int], None]
Found = tuple[StepVerdict, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions:
    """What to certify. plan: of one gang; timeout_s: for each of its starts; load: of the benchmark, for each number
    of requests at once"""

    plan: PlanRequest
    out: Path
    command: str
    timeout_s: float
    load: Load
    at_once: tuple[int, ...] = AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyScreen:
    """Who is told: of each step once it has ended, of measurements, of a start, of all else in a line."""

    say: Callable[[str], None]
    ended: Callable[[CertifiedStep], None]
    counting: Callable[[str], AbstractContextManager[Progress]]
    rising: Callable[[], AbstractContextManager[Watcher]]


def refuse_to_begin(inventory: Inventory, gang: GangSpec, out: Path) -> None:
    """Raises InputError where the file exists, or anything runs on the gang's nodes; why a node does not answer."""
    expect_writable(out, "name another file with --out", new=True)
    with connected(inventory) as operation:
        answers = everything(operation.fleet, [node.name for node in gang.machines]).all()
    if running := sorted({run.gang for answer in answers.values() for run in runs_in(answer) if run.alive}):
        raise InputError(
            f"{', '.join(running)} runs on its nodes: measurements would slow it down, and a rank is killed",
            where=f"gang {gang.name}",
            fix=f"certify it when it may stop: l40s-deploy down {' '.join(running)}",
        )


def certify(
    inventory: Inventory, gang: GangSpec, options: CertifyOptions, screen: CertifyScreen
) -> tuple[Mapping[str, Any], DeployError | None]:
    """Take the steps; the file is written anew after each of them. What was started is stopped at the end.

    Gives the file's document, and what ended the run early, None where it went through all steps.
    Raises what `refuse_to_begin` raises, and KeyboardInterrupt with the file written and the gang stopped.
    """
    alone = replace(inventory, gangs=(gang,), router=None)
    run = _Certification(alone, gang, options, screen, behind=inventory)
    refuse_to_begin(inventory, gang, options.out)
    takes = (run.discover, run.kernels, run.nettest, run.up, run.bench, run.kill, run.restart)
    try:
        for name, take in zip(STEPS, takes, strict=True):
            if not run.take(name, take):
                break
    finally:
        run.stop()
    return run.document, run.failure


@dataclass
class _Certification:
    """inventory: of this gang alone, without the router; behind: with both; mine: id of the run that this command has
    started; restarts: and of the one after it, which may not be known yet"""

    inventory: Inventory
    gang: GangSpec
    options: CertifyOptions
    screen: CertifyScreen
    behind: Inventory
    mine: str = ""
    restarts: bool = False
    done: list[CertifiedStep] = field(default_factory=list)
    failure: DeployError | None = None
    document: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._about: dict[str, Any] = {
            "version": __version__,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "gang": self.gang.name,
            "model": load_profile(self.options.plan.model).name,
            "stand_in": any(node.fs_root != "/" for node in self.gang.nodes) or None,
        }
        self._scrubber = scrubber_of(self.inventory, self.gang.machines, secrets.token_bytes(KEY_BYTES), os.environ)

    def take(self, name: str, step: Callable[[], Found]) -> bool:
        """Take one, and write down what it came to. False where it is the last one."""
        began = time.monotonic()

        def ended(verdict: StepVerdict, **more: Any) -> None:
            self.done.append(certified_step(name, verdict, time.monotonic() - began, **more))
            self._write()
            self.screen.ended(self.done[-1])

        try:
            verdict, result = step()
            ended(verdict, result=self._scrubber.value(_by_digest(result)))
        except KeyboardInterrupt:
            ended(StepVerdict.INTERRUPTED)
            raise
        except DeployError as failure:
            error = self._scrubber.value(failure.as_json())
            if isinstance(failure, NOT_TRIED) and name in ("stack check", "nettest"):
                ended(StepVerdict.NOT_RUN, error=error)
            else:
                self.failure = failure
                ended(StepVerdict.FAILED, error=error)
        return not StepVerdict(self.done[-1]["verdict"]).ends

    def _write(self) -> None:
        """Raises VerificationDiffers rather than write a secret or a name."""
        self.document = certificate(self._scrubber.value(self._about), self.done)
        if left := self._scrubber.left(str(self.document)):
            raise VerificationDiffers(
                f"it would still contain {'a secret' if left in self._scrubber.secrets else repr(left)}",
                where=str(self.options.out),
                fix="nothing was written. Report this bug without the file",
            )
        write_document(self.options.out, self.document)
        self.options.out.chmod(0o600)

    def stop(self) -> None:
        """What this command has started. A run of somebody else is left alone."""
        name = self.gang.name
        with connected(self.inventory) as operation:
            (view,) = operation.look()
        if not view.running or not (self.restarts or view.run_id == self.mine):
            return
        self.screen.say(f"{name}: stopping what was started")
        try:
            with connected(self.behind) as operation:
                stop_measured(operation, name, self.options.command, self.screen.say)
        except DeployError as failure:
            self.screen.say(f"{name} may still run: {failure.what}. Stop it with `l40s-deploy down {name}`")
            self.failure = self.failure or failure

    def discover(self) -> Found:
        """What is there, and what is wrong with it."""
        seen = examine_inventory(self.inventory)
        for failure in seen.failures.values():
            raise failure
        cluster, there = seen.cluster, tuple(seen.cluster.topologies.values())
        self._about["hardware"] = {
            "nodes": len(there),
            "gpus": dict(Counter(gpu.name for topology in there for gpu in topology.gpus)),
            "rdma_ports": sum(port.active for topology in there for port in topology.rdma),
            "drivers": sorted({topology.driver for topology in there}),
        }
        nodes = [topology_json(topology, cluster.tcp.get(name)) for name, topology in cluster.topologies.items()]
        verdict = StepVerdict.DIFFERS if seen.worst in (Severity.STOP, Severity.SLOW) else StepVerdict.OK
        return verdict, {"findings": [finding.as_json() for finding in seen.findings], "nodes": nodes}

    def kernels(self) -> Found:
        """Whether the stack's kernels compute what they should."""
        with connected(self.inventory) as operation, self.screen.counting("kernels") as at:
            checked = kernels.run_now(
                operation, self.options.plan, at, command=self.options.command, timeout_s=KERNELS_S
            )
        for failure in (failure for gang in checked for failure in gang.lost.values()):
            raise failure
        ((verdict, real),) = {(gang.verdict, gang.real) for gang in checked}
        self._stood_in(not real)
        wrong = verdict in (KernelVerdict.WRONG, KernelVerdict.FAILS) and real
        right = StepVerdict.OK if verdict is KernelVerdict.RIGHT and real else StepVerdict.NOT_RUN
        return StepVerdict.WRONG if wrong else right, kernels.check_json(checked)

    def nettest(self) -> Found:
        """What the network between GPUs and nodes gives."""
        plan = self.options.plan
        order = nettest.NettestOptions(
            gangs=plan.gangs, model=plan.model, stack=plan.stack, enough=ENOUGH, command=self.options.command
        )
        with connected(self.inventory) as operation, self.screen.counting("measurements") as at:
            (tested,) = nettest.run_now(operation, order, at)
        words = {NettestVerdict.FAILED: StepVerdict.WRONG, NettestVerdict.SLOW: StepVerdict.DIFFERS}
        return words.get(tested.result.verdict, StepVerdict.OK), nettest.nettest_json([tested])

    def up(self) -> Found:
        """Start it."""
        asked = self.options
        request = UpRequest(plan=asked.plan, command=asked.command, timeout_s=asked.timeout_s, undo_on_interrupt=True)
        with self.screen.rising() as shown, connected(self.inventory) as operation:
            outcome = up(operation.asked(), request, shown)
        (view,) = outcome.views
        if outcome.ready_before:
            raise self._somebody_elses()
        self.mine = view.run_id
        self._about |= _planned(outcome.plan, view)
        return StepVerdict.DIFFERS if view.transport else StepVerdict.OK, _started(outcome)

    def bench(self) -> Found:
        """How fast it answers."""
        order = bench.BenchOptions(gangs=(self.gang.name,), load=self.options.load, timeout_s=self.options.timeout_s)
        with connected(self.inventory) as operation, self.screen.counting("requests answered") as at:
            benched = bench.at_loads(operation, order, self.options.at_once, at)
        self._stood_in(any(gang.record["stand_in"] for gang in benched))
        slow = gravest([gang.verdict for gang in benched]) is BenchVerdict.SLOW
        result = bench_report.loads_json(benched)
        return StepVerdict.DIFFERS if slow else StepVerdict.OK, {**result, "prediction": self._predicted(result)}

    def _predicted(self, result: Mapping[str, Any]) -> dict[str, Any] | None:
        """What was predicted of this case, beside what was measured; None where it is another, or something stood in.
        Nothing of it changes a verdict."""
        model, layout = str(self._about["model"]), str(self._about.get("layout", ""))
        gpus = (self._about.get("hardware") or {}).get("gpus", {})
        if self._about["stand_in"] or not prediction.predicts(model, layout, gpus):
            return None
        (case,) = (case for name, case in prediction.CASES if (name, case.key) == (model, layout))
        predicted = prediction.predict(load_profile(model), case, load_profile(prediction.ARTICLES))
        return {"made": prediction.MADE, "points": prediction.compared(predicted, result["decode"])}

    def kill(self) -> Found:
        """SIGKILL to the last rank; right where the gang's cause names node, rank and signal, and nothing is left."""
        with connected(self.behind) as operation:
            if is_entered(operation, self.gang.name):
                raise self._behind_the_router()
        with connected(self.inventory) as operation:
            (view,) = operation.look()
            if view.run_id != self.mine or not view.serves:
                raise self._somebody_elses()
            ranks = ((rank, node_view.name) for node_view in view.nodes for rank in node_view.ranks)
            rank, node = max(ranks, key=lambda rank_and_node: rank_and_node[0].tp_rank)
            began = time.monotonic()
            _kill(operation.fleet, node, rank.pid)
            while (view := operation.look()[0]).state is not GangState.FAILED or view.running:
                if view.run_id != self.mine:
                    raise self._somebody_elses()
                if time.monotonic() - began > SEEN_S:
                    what = f"the gang is {view.state.value} {SEEN_S:.0f} s after TP{rank.tp_rank} was killed"
                    raise GangFailed(what, where=f"gang {self.gang.name}", fix="l40s-deploy why")
                time.sleep(LOOK_S)
        explained = _names_the_kill(view.cause, node, rank.tp_rank)
        seconds, (gang,) = time.monotonic() - began, status_json([view])["gangs"]
        left = _left_behind(view)
        killed = {"node": node, "tp_rank": rank.tp_rank, "signal": 9}
        verdict = StepVerdict.OK if explained and not left else StepVerdict.DIFFERS
        return verdict, {"killed": killed, "seconds": round(seconds, 1), "cause": gang["cause"], "left_behind": left}

    def restart(self) -> Found:
        """Have it serve again."""
        request = RestartRequest(
            gangs=(self.gang.name,), command=self.options.command, now=True, timeout_s=self.options.timeout_s
        )
        self.restarts = True
        try:
            with self.screen.rising() as shown, connected(self.inventory) as operation:
                outcome = restart(operation, request, shown)
        except LockHeld:
            self.restarts = False
            raise
        (view,) = outcome.views
        return StepVerdict.OK if view.serves else StepVerdict.DIFFERS, _started(outcome)

    def _stood_in(self, seen: bool) -> None:
        self._about["stand_in"] = bool(self._about["stand_in"] or seen)

    def _behind_the_router(self) -> InputError:
        return InputError(
            "another command has put it behind the router; no rank is killed that answers clients",
            where=f"gang {self.gang.name}",
            fix="certify it again while nobody adds gangs to the router (`up`, `router up`, a guard)",
        )

    def _somebody_elses(self) -> InputError:
        return InputError(
            "somebody else has started or restarted it meanwhile; that run was left alone",
            where=f"gang {self.gang.name}",
            fix="see who: l40s-deploy history; stop a guard of this gang while it is certified",
        )


def _started(outcome: UpResult | RestartResult) -> dict[str, Any]:
    return {"seconds": round(outcome.seconds, 1), **status_json(outcome.views)["gangs"][0]}


def _names_the_kill(cause: Cause | None, node: str, tp_rank: int) -> bool:
    return cause is not None and (cause.node, cause.tp_rank, cause.signal) == (node, tp_rank, 9)


def _left_behind(view: GangView) -> list[int]:
    return [pid for node in view.nodes for pid in node.left_behind]


def _kill(fleet: Fleet, node: str, pid: int) -> None:
    """With the rights that the agent has. Raises NodeError where that is refused."""
    done = fleet.on_every(lambda session: session.run(("kill", "-KILL", str(pid)), deadline_s=KILL_S), only=[node])
    if done.all()[node].status:
        error = done.values[node].err.decode("utf-8", "replace").strip()
        raise NodeError(f"process {pid} could not be killed: {error}", where=node, fix="l40s-deploy status")


def _planned(plan: Plan, view: GangView) -> dict[str, Any]:
    """What runs, by the plan."""
    (gang,) = plan.gangs
    return {
        "model": view.model,
        "stack": view.stack,
        "device": gang.leader.device,
        "layout": gang.layout.key,
        "transport": ", ".join(sorted({node.network.transport.value for node in gang.nodes})),
        "plan_id": plan.plan_id,
        "facts_digest": plan.facts_digest,
    }


def _by_digest(value: Any) -> Any:
    """A verb's document with the SHA-256 of each file that it names, as it is kept on this machine, in its place."""
    if isinstance(value, Mapping):
        return {
            key: _sha256(inner) if key in ("file", "raw_file") else _by_digest(inner) for key, inner in value.items()
        }
    return [_by_digest(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _sha256(path: Any) -> str:
    try:
        return hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()
    except OSError:
        return ""
