"""`tuning run`: find the tiles of a model's kernels on all GPUs of a gang, while it is down, and pack them.

What a run finds is kept in $XDG_STATE_HOME/l40s-deploy/tuning/KEY.jsonl, a line for each job once its result is
proved: a killed run continues where it was.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.engines.engine import Lookup
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_wanted import device_name, wanted_files
from orchestrator.gang.steps.locks import GangLock, fence
from orchestrator.gang.steps.operation import Operation
from orchestrator.jobs.messages import JobOrder
from orchestrator.jobs.run import follow, in_its_place, in_place_of, planned_requests, refuse_running
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.chosen import the_one_gang
from orchestrator.model.deadlines import TUNE_RUN_S
from orchestrator.model.inventory import GangSpec
from orchestrator.model.profile import Stack
from orchestrator.planning.plan_file import short_digest
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, InputError
from orchestrator.protocol.looks import Holdings
from orchestrator.protocol.message import parsed
from orchestrator.protocol.staging import StagingRequest
from orchestrator.records.documents import cant_be_written, state_folder
from orchestrator.remote.session import Session
from orchestrator.tuning.kernels import BATCHES, candidates, config_text, jobs_of
from orchestrator.tuning.messages import Tile, TuneJob, TuneLine, TunersOrder
from orchestrator.tuning.pack import INTERPRETED, MEASURED, Pack, part_name, unusable_for
from orchestrator.tuning.steps.packs import save_pack
from orchestrator.tuning.steps.tuning import ASSUMED_GPU, ask_holdings, gpu_of, moe_directory

PROGRAM = "tune.py"
ROUNDS = 2
"""Jobs a GPU that a node takes at a time: the next ones begin without another start of Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedGang:
    """What came of it. results: by job; before: how many of them an earlier run had found; failed: job -> why; left:
    file -> why it is not in the pack; lost: nodes that dropped out"""

    pack: Pack
    jobs: tuple[TuneJob, ...]
    results: Mapping[str, Mapping[str, Any]]
    before: int
    failed: Mapping[str, str]
    left: Mapping[str, str]
    lost: Mapping[str, DeployError]
    seconds: float


Progress = Callable[[int, int, float | None, Mapping[str, str]], None]
"""(jobs done, of, seconds left or None before the first is done, what each tuner tries)."""


def run_tuning(
    operation: Operation,
    plan: PlanRequest,
    out: Path,
    progress: Progress,
    *,
    command: str,
    batches: Sequence[int] = BATCHES,
    most: int | None = None,
    again: bool = False,
) -> TunedGang:
    """Tune on every GPU of one gang, and write the pack.

    plan: for one gang; out: the pack; most: candidates a job, None for all; again: forget earlier results
    Raises InputError where the gang runs or nothing of the model is tuned, LockHeld, and the failure of the last node
    where all have dropped out; what was found until then is kept for the next run.
    """
    begin = time.monotonic()
    gang = the_one_gang(operation.inventory, plan.gangs, command="tuning run", option="--gang")
    if out.exists():
        raise InputError("already exists", where=str(out), fix="choose another path, or remove it")
    fleet, names = operation.fleet, [node.name for node in gang.nodes]
    refuse_running(fleet, gang, why="the tuners need exclusive use of its GPUs", fix=f"l40s-deploy down {gang.name}")
    with GangLock(fleet, gang, command):
        run = _planned(operation, gang, plan, batches, most, progress)
        if again:
            forget_results(run.key)
        before = run.begin(kept_results(run.key))
        answers = fleet.on_every(partial(run.on_node, token=fence(fleet, gang.name)), only=names)
    if run.queue.open and answers.failures and not answers.values:
        raise next(iter(answers.failures.values()))
    return _packed(run, out, before, answers.failures, time.monotonic() - begin)


def _packed(run: _TuneRun, out: Path, before: int, lost: Mapping[str, DeployError], seconds: float) -> TunedGang:
    """Write what was tuned. before: jobs of an earlier run; lost: nodes that dropped out; seconds: of this run"""
    pack, left = run.pack()
    if pack.texts:
        save_pack(out, pack)
    return TunedGang(
        pack=pack,
        jobs=run.jobs,
        results=run.results,
        before=before,
        failed={**run.failed, **run.queue.lost},
        left=left,
        lost=lost,
        seconds=seconds,
    )


def _planned(
    operation: Operation,
    gang: GangSpec,
    request: PlanRequest,
    batches: Sequence[int],
    most: int | None,
    progress: Progress,
) -> _TuneRun:
    asked = replace(request, gangs=(gang.name,))
    planned, requests = planned_requests(operation, gang, asked, run_id="tuning")
    plan = planned.plan.gangs[0]
    stack, profile = load_stack(plan.stack), load_profile(asked.model)
    gpus = {name: gpu_of(snapshot) or ASSUMED_GPU for name, snapshot in planned.snapshots.items()}
    held = ask_holdings(operation.fleet, [node.name for node in gang.nodes], stack, gpus).all()
    gpu, triton = _common(gang, gpus, held)
    rules, own = _rules_of(stack), moe_directory(gang.leader, stack)
    wanted = wanted_files(profile, plan.layout, rules, gpu=gpu, triton=triton, moe_directory=own)
    needed = tuple(file for file in wanted if not file.optional)
    if not (jobs := jobs_of(profile, needed, batches)):
        raise InputError(
            f"no kernel of {profile.name} reads a tuned config in {stack.name}",
            where=f"profile {profile.name}",
            fix="no tuning needed: its matrices do not run in Triton kernels",
        )
    marks = (stack.engine_version, triton, gpu, stack.device, most, sorted(file.name for file in needed))
    return _TuneRun(
        gang=gang.name,
        requests=requests,
        parts={file.name: part_name(file.folder, file.name, rules, own) for file in needed},
        jobs=jobs,
        spaces={file.name: candidates(file.name, most) for file in needed},
        empty=_empty_pack(stack, next(iter(held.values())), gpu, triton),
        key=f"{profile.name}-{short_digest([str(mark) for mark in marks])}",
        progress=progress,
    )


def _empty_pack(stack: Stack, held: Holdings, gpu: str, triton: str) -> Pack:
    """held: of a node, which has what all have"""
    return Pack(
        dialect=stack.dialect,
        engine_version=held.versions.get("sglang", stack.engine_version),
        device=device_name(gpu),
        triton=triton,
        texts={},
        made=MEASURED if stack.device == "cuda" else INTERPRETED,
    )


def _rules_of(stack: Stack) -> Lookup:
    if (engine := engine_of(stack)).product != "SGLang":
        what = f"its kernels are {engine.product}'s; only SGLang's are tuned"
        raise InputError(what, where=f"stack {stack.name}", fix="choose one of SGLang: --stack NAME")
    return engine.tuned


def _common(gang: GangSpec, gpus: Mapping[str, str], held: Mapping[str, Holdings]) -> tuple[str, str]:
    """The GPU and the Triton version of all nodes. Raises InputError where they differ."""
    tritons = {holdings.versions.get("triton", "") for holdings in held.values()}
    if len(set(gpus.values())) > 1 or len(tritons) > 1:
        raise InputError(
            f"its nodes differ: GPUs {', '.join(sorted(set(gpus.values())))}; Triton {', '.join(sorted(tritons))}",
            where=f"gang {gang.name}",
            fix="tune on nodes with the same GPUs and the same stack: choose other gangs, or run `l40s-deploy prepare`",
        )
    return next(iter(gpus.values())), tritons.pop()


@dataclass(kw_only=True)
class _TuneRun:
    """One run on all nodes. Written by one thread a node.

    requests: as the engine would be staged, by node; parts: of the pack, by file name; empty: the pack without its
    files; key: of the kept results
    """

    gang: str
    requests: Mapping[str, StagingRequest]
    parts: Mapping[str, str]
    jobs: tuple[TuneJob, ...]
    spaces: Mapping[str, tuple[Tile, ...]]
    empty: Pack
    key: str
    progress: Progress
    results: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    queue: JobQueue = field(init=False)
    _trying: dict[str, str] = field(default_factory=dict)
    _begin: float = field(default_factory=time.monotonic)
    _found: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, kept: Mapping[str, Mapping[str, Any]]) -> int:
        """With an earlier run's results; returns how many of them are of this run's jobs."""
        self.results = {job.id: kept[job.id] for job in self.jobs if job.id in kept}
        self.queue = JobQueue(job for job in self.jobs if job.id not in self.results)
        self._say()
        return len(self.results)

    def on_node(self, session: Session, token: str) -> None:
        """Take jobs until there are none. Raises the node's failure; its jobs then go to other nodes."""
        name = session.spec.name
        staged = self.requests[name]
        gpus = len(staged.gpus) or len(staged.tp_ranks)
        while jobs := self.queue.take(ROUNDS * gpus):
            why = f"{name}: its tuner exited twice without a result: check the node's kernel log (`journalctl -k`)"
            try:
                order = self._order(staged, jobs, gpus)
                follow(session, self.gang, order, TuneLine, partial(self._take, name), token)
            except DeployError as failure:
                why = f"{failure.where}: {failure.what}"
                raise
            finally:
                self.queue.give_back(jobs, why)
                with self._lock:
                    others = {place: job for place, job in self._trying.items() if not place.startswith(f"{name} ")}
                    self._trying = others

    def _order(self, staged: StagingRequest, jobs: tuple[TuneJob, ...], gpus: int) -> JobOrder:
        spaces = {job.space: self.spaces[job.space] for job in jobs}
        return in_its_place(
            PROGRAM,
            "tuning",
            in_place_of(staged),
            TunersOrder(device=staged.device, gpus=gpus, spaces=spaces, jobs=jobs),
            deadline_s=TUNE_RUN_S,
            beside=f"stop it with `l40s-deploy down {self.gang}`",
            too_long="run the same command again: what is done is kept",
        )

    def _take(self, node: str, line: TuneLine) -> None:
        place = f"{node} GPU {line.gpu}"
        with self._lock:
            if line.job:
                self.results[line.job] = {**line.as_json(), "node": node}
                keep_result(self.key, self.results[line.job])
                self._found += 1
            if line.failed:
                self.failed[line.failed] = f"{place}: {line.what}"
            if line.job or line.failed:
                self.queue.end(line.job or line.failed)
            if line.begun or line.trying:
                self._trying[place] = line.begun or f"{line.trying}: {line.tried} of {line.of}"
            self._say()

    def _say(self) -> None:
        jobs, over = len(self.jobs), len(self.results) + len(self.failed)
        pace = (time.monotonic() - self._begin) / self._found if self._found else None
        self.progress(over, jobs, None if pace is None else pace * (jobs - over), dict(self._trying))

    def pack(self) -> tuple[Pack, dict[str, str]]:
        """Every file with a result, judged once more as any other file is; and why others are left out."""
        tiles: dict[str, dict[int, Tile]] = {}
        for job in self.jobs:
            if job.id in self.results:
                tiles.setdefault(job.space, {})[job.batch] = self.results[job.id]["config"]
        texts = {name: config_text(of) for name, of in tiles.items()}
        left = {name: flaw.text for name, text in texts.items() if (flaw := unusable_for(name, text))}
        kept = {self.parts[name]: text for name, text in texts.items() if name not in left}
        return replace(self.empty, texts=kept), left


def tuned_json(done: TunedGang, out: Path) -> dict[str, Any]:
    """The document of `tuning run --json`."""
    return {
        "pack": str(out) if done.pack.texts else None,
        "made": done.pack.made,
        "files": sorted(done.pack.texts),
        "left": dict(done.left),
        "jobs": [_job_json(job, done) for job in done.jobs],
        "from_before": done.before,
        "lost": {name: failure.as_json() for name, failure in done.lost.items()},
        "seconds": round(done.seconds, 1),
    }


def _job_json(job: TuneJob, done: TunedGang) -> dict[str, Any]:
    shape = {"kernel": job.kernel, "file": job.space, "batch": job.batch}
    if (result := done.results.get(job.id)) is None:
        return {**shape, "error": done.failed.get(job.id, "not tried")}
    return {
        **shape,
        "us": result["us"],
        "before_us": result["before_us"] or None,
        "config": result["config"],
        "unchanged": result["kept"],
        "product_error": result["error"],
        "refused": {"wrong": result["wrong"], **result["unfit"]},
        "node": result["node"],
    }


MOST_TRIES = 2
"""Of a job whose tuner died, or whose node was lost."""


class JobQueue:
    """Nodes take some at a time; what they do not finish goes to the next node that asks.

    lost: jobs that were begun too often without an end, with why
    """

    def __init__(self, jobs: Iterable[TuneJob]) -> None:
        self.lost: dict[str, str] = {}
        self._waiting = list(jobs)
        self._out: set[str] = set()
        self._tries = Counter[str]()
        self._changed = threading.Condition()

    @property
    def open(self) -> bool:
        """Some wait."""
        return bool(self._waiting)

    def take(self, most: int) -> tuple[TuneJob, ...]:
        """The next ones, in their order; waits while other nodes have jobs that may come back. () when all is over."""
        with self._changed:
            while not self._waiting and self._out:
                self._changed.wait()
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            self._out |= {job.id for job in taken}
            return tuple(taken)

    def end(self, job: str) -> None:
        """It is done, or has failed for good."""
        with self._changed:
            self._out.discard(job)
            self._changed.notify_all()

    def give_back(self, jobs: Sequence[TuneJob], why: str) -> None:
        """Those that are not finished go to other nodes."""
        with self._changed:
            for job in jobs:
                if job.id in self._out:
                    self._out.remove(job.id)
                    self._tries[job.id] += 1
                    if self._tries[job.id] < MOST_TRIES:
                        self._waiting.append(job)
                    else:
                        self.lost[job.id] = why
            self._changed.notify_all()


def _results(key: str) -> Path:
    return state_folder("tuning") / f"{key}.jsonl"


def kept_results(key: str) -> dict[str, Mapping[str, Any]]:
    """By job, the last one counts; a line that a kill has torn is none."""
    try:
        lines = _results(key).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    results = [result for line in lines if isinstance(result := parsed(line), dict)]
    return {result["job"]: result for result in results if isinstance(result.get("job"), str)}


def keep_result(key: str, result: Mapping[str, Any]) -> None:
    """Append one. Raises InputError where it can't be written."""
    file = _results(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file.open("a", encoding="utf-8") as lines:
            lines.write("\n" + json.dumps(result) + "\n")  # a torn line before it stays one line
            lines.flush()
            os.fsync(lines.fileno())
    except OSError as failure:
        raise cant_be_written(file, failure, f"make {file.parent} writable, or free space on its disk") from None


def forget_results(key: str) -> None:
    """Start again from nothing."""
    _results(key).unlink(missing_ok=True)
