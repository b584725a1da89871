"""A program of the controller in place of the engine: as the engine's user, with its rights and environment.

Where the engine runs in a container, the program runs in one of its own from the same image.

Its lines on a pipe of its own are passed on as they come, {} twice a second, at the end NCCL's lines of its output and
{"ended"}. When nobody reads any more, or the deadline has passed, it is ended with all that it started.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, cast

from orchestrator.node import files, itself, kernel, processes
from orchestrator.node.agent import preflight, staged_files
from orchestrator.node.agent.run import Run, run_of
from orchestrator.node.engine import engine_container, guardian, helper_process
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.failure import Failure
from orchestrator.node.files import REPORT_FILE
from orchestrator.node.in_place import container
from orchestrator.node.os_failure import os_failures
from orchestrator.node.telling import PART_BYTES, TICK_S, reader_is_gone, tell
from orchestrator.node.verbs import lock, report, stage
from orchestrator.protocol.in_place import InPlaceOrder
from orchestrator.protocol.message import Message, parsed
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.staging import ContainerOrder
from orchestrator.protocol.verbs import GangRequest

KEPT_LOG = 16 << 10
KEPT_NCCL = 1 << 20
"""NCCL says some 30 KiB a rank."""
_OF_THE_PLAN = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "SGLANG_", "LD_PRELOAD")
"""Variables that only the plan may set, as in its launch script."""


@dataclass(frozen=True)
class Task:
    """What is run. word: the verb; noun: in messages; many: its processes, for messages

    beside, too_long: fixes for an engine that runs, and for a passed deadline
    """

    word: str
    noun: str
    many: str
    beside: str
    too_long: str


def carry_out(asked: GangRequest, order: InPlaceOrder, said: Message, task: Task) -> None:
    """Run it once, to its end. said: what the program reads on stdin.

    Raises Failure for what forbids it, BrokenPipeError if the reader is gone.
    """
    lock.refuse_a_former_holder(asked)
    state = files.state_dir(asked.state_dir)
    refuse_beside_an_engine(files.current_run(state, asked.gang), task.beside)
    folder = files.run_dir(state, asked.gang, f"{task.word}-{os.getpid()}")
    run = run_of({**order.run.as_json(), "engine_user": stage.engine_user(order.run.engine_user)}, folder)
    with os_failures(state):
        kernel.adopt_orphans()
        _refuse_unready(run)
        if run.container is not None:
            stage.make_cache(state, run, helper_process.owner(run))
        _start(run, order, said, task)


def refuse_beside_an_engine(folder: str | None, fix: str) -> None:
    """Raises Failure where an engine of the run in this folder is up; an armed agent has started nothing yet."""
    if folder is None or not processes.alive(*report.agent(folder)):
        return
    found = files.read_as(Report, f"{folder}/{REPORT_FILE}")
    if found is None or found.state not in (AgentState.STAGED, AgentState.ARMED):
        what = f"an engine of this gang is running ({found.state.value if found else 'unreadable'}): both would be slow"
        raise Failure("running", what, folder, fix)


def _refuse_unready(run: Run) -> None:
    memory = GpuMemory(itself.application(), run.gpus if run.device == "cuda" else ())
    try:
        failures = preflight.check_for_test(run, memory)
    finally:
        memory.close()
    if failures:
        raise failures[0]
    for name, least in run.limits.items():
        guardian.raise_limit(name, least)


def _start(run: Run, order: InPlaceOrder, said: Message, task: Task) -> None:
    begun = _begin(run, order, said, task)
    log = _Log()
    try:
        _follow(begun, log, task, order.deadline_s)
    finally:
        begun.end()
    for word in sorted(run.hidden_words(), key=len, reverse=True):
        log.hide(word)
    status = begun.child.returncode
    if status != 0 and not log.told:
        raise _never_began(run, task, status, helper_process.last_words(log.last))
    for begin in range(0, len(log.nccl), PART_BYTES):
        tell({"log": log.nccl[begin : begin + PART_BYTES]})
    tell({"ended": status, "what": "" if status == 0 else helper_process.last_words(log.last)})


@dataclass(frozen=True)
class _Program:
    """The program. results, output: to read what it says and what it logs; remove: of its container, first"""

    child: subprocess.Popen[bytes]
    results: BinaryIO
    output: BinaryIO
    remove: Callable[[], None] | None = None

    def end(self) -> None:
        """Nothing of it is left."""
        if self.remove is not None and self.child.poll() is None:
            self.remove()
        helper_process.end(self.child)
        for stream in (self.results, self.output):
            stream.close()


def _begin(run: Run, order: InPlaceOrder, said: Message, task: Task) -> _Program:
    if run.container is not None:
        return _in_container(run, run.container, order, said, task)
    results, theirs = os.pipe2(os.O_CLOEXEC)
    program, stdin = (_text(text) for text in (order.program, json.dumps(said.as_json())))
    child = subprocess.Popen(
        [run.venv_python, f"/proc/self/fd/{program}", str(theirs)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_environment(run),
        pass_fds=(program, theirs),
        preexec_fn=partial(helper_process.become, run, os.getpid()),  # noqa: PLW1509 - one thread
    )
    for descriptor in (program, stdin, theirs):
        os.close(descriptor)
    assert child.stdout is not None
    return _Program(child, os.fdopen(results, "rb", buffering=0), cast("BinaryIO", child.stdout))


def _in_container(run: Run, wanted: ContainerOrder, order: InPlaceOrder, said: Message, task: Task) -> _Program:
    name = f"{run.unit_name}-{task.word}"
    child = container.start(run, wanted, name, order.program.encode(), json.dumps(said.as_json()).encode())
    assert child.stdout is not None and child.stderr is not None
    remove = partial(engine_container.remove_named, wanted.program, name)
    return _Program(child, cast("BinaryIO", child.stdout), cast("BinaryIO", child.stderr), remove)


def _text(text: str) -> int:
    descriptor = staged_files.in_memory(text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _environment(run: Run) -> dict[str, str]:
    session = guardian.engine_environment(run)
    return {name: value for name, value in session.items() if name in run.env or not name.startswith(_OF_THE_PLAN)}


class _Log:
    """What the ranks write: its end, and NCCL's lines. told: they have reported something themselves."""

    def __init__(self) -> None:
        self.last = self.nccl = self._rest = ""
        self.told = False

    def add(self, data: bytes) -> None:
        """More of it."""
        text = data.decode("utf-8", "replace")
        self.last = (self.last + text)[-KEPT_LOG:]
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self.nccl) < KEPT_NCCL:
            self.nccl += "".join(f"{line}\n" for line in lines if "NCCL INFO" in line)

    def hide(self, word: str) -> None:
        """Take a secret out."""
        self.last, self.nccl = self.last.replace(word, "***"), self.nccl.replace(word, "***")


def _follow(begun: _Program, log: _Log, task: Task, deadline_s: float) -> None:
    """Pass on the ranks' lines until all have ended. Raises BrokenPipeError if the reader is gone."""
    child, results, output = begun.child, begun.results.fileno(), begun.output.fileno()
    end, rest = time.monotonic() + deadline_s, b""
    open_ = {output, results}
    while open_:
        ready, _, _ = select.select(list(open_), [], [], TICK_S)
        for descriptor in ready:
            data = os.read(descriptor, 65536)
            if not data:
                open_.discard(descriptor)
            elif descriptor == output:
                log.add(data)
            else:
                *lines, rest = (rest + data).split(b"\n")
                log.told = True
                for line in map(parsed, lines):
                    if isinstance(line, dict):
                        tell(line)
        if not ready:
            if child.poll() is not None:
                return  # what it left behind may hold the pipes open
            tell({})
        if reader_is_gone(0):
            raise BrokenPipeError
        if time.monotonic() > end:
            what = f"the {task.noun} did not finish within {deadline_s:.0f} s and was stopped"
            raise Failure("deadline", what, task.word, task.too_long)
    child.wait(max(0.1, end - time.monotonic()))


def _never_began(run: Run, task: Task, status: int, said: str) -> Failure:
    where = run.container.image if run.container else run.venv_python
    if "No module named" in said:
        what = f"the stack's environment has no torch: {said}"
        return Failure("no-torch", what, where, f"install the stack {run.stack} with `l40s-deploy prepare`")
    what = f"the {task.many} of this node exited with status {status}: {said}"
    return Failure("ranks-ended", what, where, "l40s-deploy doctor")
