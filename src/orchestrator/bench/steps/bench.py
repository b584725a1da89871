"""`bench`: is this speed normal? The engine's own benchmark client on the leader, its figures kept and judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.bench import text
from orchestrator.bench.store import all_benches, keep_raw, new_id, write_bench
from orchestrator.bench.text import Dataset
from orchestrator.bench.verdict import (
    FEWEST_RUNS,
    MOST_RUNS,
    BenchVerdict,
    JudgedFigure,
    applying,
    causes,
    held_against,
    judge,
    looks_like_wrong_wiring,
    mean_of,
    other_prompts,
    overall,
)
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.doctor.steps.doctor import cluster_of
from orchestrator.engines import bench_client
from orchestrator.engines.bench_client import BenchResult, DecodeLog
from orchestrator.engines.registry import engine_of
from orchestrator.gang.steps.examination import layouts_of
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.view import GangView
from orchestrator.jobs.messages import JobLine, JobOrder
from orchestrator.jobs.run import alone, disturbed, follow, refuse_busy, serving_view
from orchestrator.loading.profiles import reported_profile, reported_stack
from orchestrator.model.chosen import the_one_gang
from orchestrator.model.inventory import GangSpec
from orchestrator.model.profile import ExpectedSpeeds, Load
from orchestrator.model.snapshot import Snapshot
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import DeployError, InputError, NodeError
from orchestrator.protocol.staging import StagingRequest
from orchestrator.records.documents import keep_least_free
from orchestrator.records.nettests import slow_before
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build
from orchestrator.topology.machines import State, grown, state_of, throttled
from orchestrator.tuning.steps.tuning import ask_holdings, gpu_of

LOADED_S = 45.0
STARTS = 3
"""Of a client that meets an agent's probe, which takes milliseconds of every five seconds."""
SLOWED = "other requests slow the benchmark down"
ALL_AT_ONCE = 1_000_000
"""Requests a second."""
Progress = Callable[[str, int, int], None]
"""(what runs, requests answered so far, of)."""
Enough = Callable[[Sequence[Mapping[str, float]]], bool]
"""Of the figures of all runs so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to run. timeout_s: for each run; dataset: None for our own text; enough: whether these runs' figures tell
    what is asked, None for those that leave one verdict."""

    gangs: tuple[str, ...] = ()
    load: Load
    timeout_s: float
    dataset: Dataset | None = None
    enough: Enough | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedGang:
    """Some runs of one load, and what they are worth.

    record:   as it is kept; file: where
    expected: the profile's entry, None where it has none for this case
    """

    record: Mapping[str, Any]
    file: str
    judged: tuple[JudgedFigure, ...]
    verdict: BenchVerdict
    expected: ExpectedSpeeds | None


def run_now(operation: Operation, order: BenchOptions, progress: Progress) -> BenchedGang:
    """Run the client on one gang's leader, a first time for nothing, and judge the mean of the next runs.

    They are repeated until their noise leaves one verdict, MOST_RUNS times at most.

    Raises InputError where the gang does not serve, is busy, or not exactly one is meant, and NodeError where the
    client fails or an answer is incomplete. The engine is as it was in any case.
    """
    gang = the_one_gang(operation.inventory, order.gangs, command="bench")
    return measured(operation, gang, order, progress)


def measured(operation: Operation, gang: GangSpec, order: BenchOptions, progress: Progress) -> BenchedGang:
    """`run_now` on a gang that is known."""
    fleet = operation.fleet
    (gang,) = operation.as_they_run([gang])
    view = serving_view(fleet, gang, why="there is no speed to measure")
    bench = _Bench(fleet, gang, view, staged_plan(fleet, gang).requests[gang.leader.name], order)
    refuse_busy(fleet, gang, view.service_url, why=SLOWED)
    looked = look(fleet, gang.nodes)
    gpu = gpu_of(looked.all()[gang.leader.name])
    findings = findings_now(gang, view, looked.values)
    tuned = tuned_now(fleet, gang, bench.engine.stack, gpu)
    warm, loaded = _warm_up(bench, progress)
    record = bench.record(gpu=gpu, at=time.time(), stand_in=warm.result.stand_in)
    measure = _measure_of(record, order.load)

    def bench_once(number: int) -> _Ran:
        with alone(fleet, gang, view.service_url, ours=order.load.prompts, why=SLOWED):
            return bench.run(lambda done, of: progress(f"run {number}", done, of))

    ran = until_decided(bench_once, order.enough or measure.decided)
    after = _states(look(fleet, gang.nodes).values)
    least_free = bench.least_free_after()
    about = {
        "findings": findings,
        "tuned": tuned,
        "machines": {"before": _states(looked.values), "loaded": loaded, "after": after},
        "raw_file": keep_raw(record["id"], bench_client.without_arguments(ran[-1].text)),
        "least_free_bytes": least_free,
    }
    return bench.judged({**record, **about}, ran, measure)


def until_decided(bench_once: Callable[[int], _Ran], enough: Enough) -> list[_Ran]:
    """As many runs as are enough, within FEWEST_RUNS and MOST_RUNS."""
    ran = list[_Ran]()
    while len(ran) < FEWEST_RUNS or (len(ran) < MOST_RUNS and not enough([finished.figures for finished in ran])):
        ran.append(bench_once(len(ran) + 1))
    return ran


def at_loads(
    operation: Operation, order: BenchOptions, requests: Sequence[int], progress: Progress
) -> tuple[BenchedGang, ...]:
    """One measurement a number of requests, all of which are sent at once. Raises what `run_now` raises; what was
    measured before that is recorded."""

    def bench_at(count: int) -> BenchedGang:
        return run_now(
            operation,
            replace(order, load=replace(order.load, prompts=count, concurrency=count, rate=ALL_AT_ONCE)),
            lambda what, done, of: progress(f"{count} at once, {what}", done, of),
        )

    return tuple(map(bench_at, requests))


def _states(snapshots: Mapping[str, Snapshot]) -> dict[str, State]:
    return {name: state_of(snapshot, build(snapshot)) for name, snapshot in snapshots.items()}


def _warm_up(bench: _Bench, progress: Progress) -> tuple[_Ran, dict[str, State]]:
    """A first run for nothing, and the nodes' states in the middle of it, over separate connections; {} where it was
    too short for that."""
    looks = list[Future[dict[str, State]]]()

    def states() -> dict[str, State]:
        return _states(look(bench.fleet.apart, bench.gang.nodes).values)

    def at(done: int, of: int) -> None:
        progress("warm-up", done, of)
        if not looks and 2 * done >= of:
            looks.append(ahead(states))

    ran, seen = bench.run(at), dict[str, State]()
    with suppress(DeployError, NotYet):
        seen = looks[0].result(LOADED_S) if looks else {}
    return ran, seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """One run of the client. figures: what it measured; log: decoding as the leader's log has it; text: of the result
    file"""

    figures: Mapping[str, float]
    result: BenchResult
    log: DecodeLog | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """What a run is held against. entries: the profile's of just this case; expected: the one that decides

    unfit: why it can't be judged by it, '' where it can
    """

    figures: Mapping[str, float]
    against: str
    unfit: str
    expected: ExpectedSpeeds | None
    entries: tuple[ExpectedSpeeds, ...]

    def judge(self, runs: Sequence[Mapping[str, float]]) -> tuple[JudgedFigure, ...]:
        return judge(mean_of(runs), self.figures, runs)

    def decided(self, runs: Sequence[Mapping[str, float]]) -> bool:
        """More runs would change nothing."""
        verdicts = (judged.verdict for judged in self.judge(runs) if judged.figure.decides)
        return bool(self.unfit) or BenchVerdict.UNDECIDED not in verdicts


def _measure_of(record: Mapping[str, Any], load: Load) -> _Measure:
    case = {key: record[key] for key in ("stack", "layout", "gpu")}
    entries = applying(expectations(record["model"]), **case, load=load)
    expected, before = held_against(entries), _fastest(record)
    figures, against = {}, ""
    if expected is not None:
        figures, against = dict(expected.figures), f"{expected.name}: {expected.source}"
    elif before is not None:
        figures, against = before["serving"], f"the fastest earlier run of this case, {before['id']}"
    return _Measure(
        figures=figures,
        against=against,
        unfit=other_prompts(expected, record["dataset"]),
        expected=expected,
        entries=entries,
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """One gang's. engine: as its leader was staged."""

    fleet: Fleet
    gang: GangSpec
    view: GangView
    engine: StagingRequest
    order: BenchOptions

    def run(self, progress: Callable[[int, int], None]) -> _Ran:
        """One run of the client. Raises NodeError where it fails, its figures mean nothing, or others' requests ran."""
        leader, load = self.gang.leader, self.order.load
        words = bench_client.command(
            engine_of(reported_stack(self.engine.stack)),
            load,
            url=self.view.service_url,
            model=self.view.model,
            tokenizer=self.engine.model_path,
        )
        job = self._job(("-m", *words))
        place = f"{leader.name}: {words[0]}"
        for _ in range(STARTS):
            heard = _ClientAnswers(progress)
            work = partial(follow, gang=self.gang.name, order=job, kind=JobLine, take=heard.take)
            self.fleet.on_every(work, only=[leader.name]).all()
            if heard.end.ended == 0 or not bench_client.BUSY.search(heard.end.what):
                break
        if heard.end.ended != 0:
            raise _failed(heard.end, place, self.engine, self.gang)
        try:
            result = bench_client.read(heard.text)
        except ValueError as wrong:
            raise NodeError(f"its result can't be read: {wrong}", where=place, fix="l40s-deploy logs") from None
        if flaw := bench_client.flaw(result, load):
            fix = "check `l40s-deploy logs` and `l40s-deploy golden check`; these figures are not recorded"
            raise NodeError(f"the run is not valid: {flaw}", where=place, fix=fix)
        if most := bench_client.more_at_once(heard.rows, load):
            what = f"{most} were in the engine at once, and {load.concurrency} of ours at most"
            raise disturbed(self.gang, what)
        return self._ran(result, heard)

    def _job(self, command: tuple[str, ...]) -> JobOrder:
        load, dataset = self.order.load, self.order.dataset
        prompts = dataset.text if dataset else text.own_text(max(text.TURNS, load.prompts))
        return JobOrder(
            word="bench",
            noun="benchmark client",
            files={bench_client.DATASET: prompts},
            modules=bench_client.LEFT_OUT,
            command=command,
            env=bench_client.ENVIRONMENT,
            key=bench_client.KEY,
            result=bench_client.RESULT,
            progress=bench_client.PROGRESS,
            engine_log=bench_client.DECODE_LINE,
            deadline_s=self.order.timeout_s,
            too_long="check `l40s-deploy status`; allow more time with --timeout, or use fewer requests",
        )

    def _ran(self, result: BenchResult, heard: _ClientAnswers) -> _Ran:
        """With the speed of decoding alone where all requests were sent at once. The log counts one micro-batch under
        pipeline parallelism, and says nothing of requests that came one by one."""
        load, figures = self.order.load, dict(result.figures)
        at_once = min(load.concurrency, load.rate) >= load.prompts
        micro = self.engine.layout is not None and self.engine.layout.pipeline_parallel > 1
        log = bench_client.decoding(heard.rows, load) if at_once and not micro else None
        if at_once and result.decode_tok_s is not None:
            figures["decode_tok_s"] = result.decode_tok_s
        if log is not None:
            figures["decode_log_tok_s"] = log.tok_s
        return _Ran(figures=figures, result=result, log=log, text=heard.text)

    def record(self, *, gpu: str, at: float, stand_in: bool) -> dict[str, Any]:
        """What is known before the first run."""
        engine, dataset = self.engine, self.order.dataset
        return {
            "id": new_id(self.gang.name, at),
            "at": at,
            "gang": self.gang.name,
            "plan_id": engine.plan_id,
            "run_id": self.view.run_id,
            "model": engine.model,
            "stack": engine.stack,
            "packages": dict(engine.packages),
            "layout": engine.layout.key if engine.layout else "",
            "nodes": [node.name for node in self.gang.nodes],
            "gpu": gpu,
            "load": asdict(self.order.load),
            "dataset": dataset.name if dataset else text.NAME,
            "stand_in": stand_in,
            "remarks": list(self.view.remarks),
            "transport": [{"id": finding.id, "title": finding.title} for finding in self.view.transport],
        }

    def judged(self, record: Mapping[str, Any], ran: Sequence[_Ran], measure: _Measure) -> BenchedGang:
        """The record is kept, with the mean of all runs, its verdict and why it may be slow; what is one run's is the
        last one's."""
        last, runs = ran[-1], [finished.figures for finished in ran]
        judged, against, serving = measure.judge(runs), measure.against, mean_of(runs)
        verdict, why = overall(judged), tuple[str, ...]()
        if measure.unfit:
            verdict, against = BenchVerdict.NONE, f"{against}; {measure.unfit}"
        if verdict not in (BenchVerdict.EXPECTED, BenchVerdict.NONE):
            machines = record["machines"]
            why = causes(
                transport=[finding.title for finding in self.view.transport],
                remarks=self.view.remarks,
                graph_batch=self.engine.graph_batch,
                shares=self.engine.layout.shares if self.engine.layout else 1,
                load=self.order.load,
                throttled=throttled(machines["loaded"] or machines["after"]),
                grown=grown(machines["before"], machines["after"]),
                network=slow_before(self.gang, record["stack"]),
                wrong=looks_like_wrong_wiring(serving, measure.entries),
                duration_s=serving["duration_s"],
            )
        kept = {
            **record,
            "serving": serving,
            "runs": runs,
            "decode_log": asdict(last.log) if last.log is not None else None,
            "raw": dict(last.result.raw),
            "verdict": verdict.value,
            "against": against,
            "causes": list(why),
        }
        return BenchedGang(
            record=kept, file=str(write_bench(kept)), judged=judged, verdict=verdict, expected=measure.expected
        )

    def least_free_after(self) -> int | None:
        """The least GPU memory that its run has had free until now, which is kept for the next plan.

        Raises NodeError where the gang is no longer the one that was measured.
        """
        (now,) = see(self.fleet, [self.gang])
        if now.run_id != self.view.run_id or not now.serves:
            raise NodeError(
                "the gang was stopped or restarted during the measurement: the figures are discarded",
                where=f"gang {self.gang.name}",
                fix="check the reason with `l40s-deploy why`, then run `l40s-deploy bench` again",
            )
        if now.least_free_bytes is not None and now.plan_id:
            keep_least_free(now.name, now.plan_id, now.least_free_bytes)
        return now.least_free_bytes


@dataclass
class _ClientAnswers:
    """What the node has said of a run. text: of the result file; rows: what the engine's log said of decoding"""

    progress: Callable[[int, int], None]
    text: str = ""
    rows: list[tuple[float, ...]] = field(default_factory=list)
    end: JobLine = field(default_factory=JobLine)

    def take(self, line: JobLine) -> None:
        """One line."""
        if line.answered is not None:
            self.progress(line.answered, line.of)
        self.text += line.result
        self.rows += line.decoded
        self.end = line


def _failed(end: JobLine, place: str, request: StagingRequest, gang: GangSpec) -> NodeError:
    fix = "check `l40s-deploy status` and `l40s-deploy logs`"
    if "No module named" in end.what and request.container is None:
        fix = f"the stack's environment ({request.venv_python}) lacks the package that has it: `l40s-deploy prepare`"
    elif bench_client.REFUSED.search(end.what):
        fix = f"the engine does not accept the API key of this run; start it again: `l40s-deploy restart {gang.name}`"
    return NodeError(f"the benchmark client ended with status {end.ended}: {end.what}", where=place, fix=fix)


def expectations(model: str) -> tuple[ExpectedSpeeds, ...]:
    """() if the profile is not on this machine: another operator may have started it."""
    try:
        return reported_profile(model).expected
    except DeployError:
        return ()


_CASE = ("gang", "model", "stack", "layout", "gpu", "load", "dataset", "stand_in")


def _fastest(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fastest earlier run of the same case: a slow one must not become the measure of the next."""
    same = [
        record_alike for record_alike in all_benches() if all(record_alike.get(key) == record[key] for key in _CASE)
    ]
    return max(same, key=lambda record_alike: float(record_alike["serving"].get("output_tok_s", 0.0)), default=None)


def read_dataset(path: Path, prompts: int) -> Dataset:
    """Raises InputError for a file that can't be read, or that the client could not draw so many prompts from."""
    fix = "a JSON list in ShareGPT's form, or leave --dataset out"
    try:
        if path.stat().st_size > text.LONGEST:
            raise InputError(f"longer than {text.LONGEST >> 20} MiB", where=str(path), fix="use a part of it")
        return text.dataset_of(path.name, path.read_text("utf-8"), prompts)
    except OSError as failure:
        raise InputError(f"can't be read: {failure.strerror}", where=str(path), fix=fix) from None
    except ValueError as wrong:
        raise InputError(str(wrong), where=str(path), fix=fix) from None


def findings_now(gang: GangSpec, view: GangView, snapshots: Mapping[str, Snapshot]) -> list[dict[str, Any]]:
    """What `doctor` finds on these snapshots, accepted or not; the ways between nodes are not tried."""
    topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
    cluster = cluster_of((node for node in gang.nodes if node.name in topologies), topologies, snapshots)
    cluster = replace(cluster, layouts=layouts_of([view]), models={gang.name: view.model})
    return [finding.as_json() for finding in run_rules(cluster)]


def tuned_now(fleet: Fleet, gang: GangSpec, stack: str, gpu: str) -> dict[str, list[str]]:
    """By node: the tuned configs for its GPU that its environment has. {} for an engine on CPU; a node that does not
    answer is left out."""
    try:
        known = reported_stack(stack)
    except InputError:  # its file is gone since
        return {}
    if known.device != "cuda":
        return {}
    names = [node.name for node in gang.nodes]
    held = ask_holdings(fleet, names, known, dict.fromkeys(names, gpu)).values
    return {
        name: sorted(f"{folder}/{file}" for folder, files in held_by_node.folders.items() for file in files)
        for name, held_by_node in held.items()
    }
