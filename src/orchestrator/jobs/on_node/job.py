"""Verb `job`: a program of the controller, out of the engine's environment and as its user: in the engine's place with
its GPUs and rights, or beside it.

Where the engine runs in a container, the program runs in one of its own from the same image: stopping it never affects
the engine. It has a folder of its own for its files. Its lines on file RESULTS are passed on as they come, {} or how
far it is twice a second, at the end the parts of its result, NCCL's lines of its output and {"ended"}. When nobody
reads any more, or the deadline has passed, it is ended with all that it started.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import select
import shutil
import stat
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator.jobs.messages import NEVER, RESULTS, JobOrder, JobRequest
from orchestrator.node import files, processes, supervision
from orchestrator.node.agent import preflight
from orchestrator.node.agent.staged_run import Run, run_of, staged_in
from orchestrator.node.engine import engine_container, guardian
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.logfile import log_since_now
from orchestrator.node.engine.watch import shown
from orchestrator.node.files import ENGINE_LOG, REPORT_FILE
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import PART_BYTES, TICK_S, reader_is_gone, request_of, tell
from orchestrator.node.verbs import lock, report, stage
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import parsed
from orchestrator.protocol.planned import OF_THE_PLAN
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.staging import ENDS_WITH_STDIN, Container

MOST_BYTES = 64 << 20
"""Of a result, and of a program's lines; 256 answers of 200 tokens take about a megabyte."""
KEPT_LOG = 16 << 10
KEPT_NCCL = 1 << 20
"""NCCL says some 30 KiB a rank."""
MOST_ROWS, ROWS_AT_ONCE = 4096, 256
"""Lines of the engine's log: one in 40 steps, so that a run of half an hour has some hundreds."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[a-z]+)?")
_SHELL = ("/bin/sh", "-c", f'exec "$@" {RESULTS}>&1 1>&2', "l40s-job")
"""Results by standard output, whatever the program prints by standard error: a container has no other pipes."""
_LIMITS = ("--ulimit", "memlock=-1:-1", "--ulimit", "nofile=1048576:1048576")
_RIGHTS = ("--cap-add", "IPC_LOCK", "--cap-add", "SYS_NICE")
_DEVICES = "/dev/infiniband"


def stream(request: dict[str, Any]) -> None:
    """Run it once, to its end. Raises DeployError for what forbids it, BrokenPipeError if the reader is gone."""
    asked = request_of(JobRequest, request)
    order = asked.order
    for name in (order.word, *order.files, *order.modules, *([order.result] if order.result else ())):
        if not _NAME.fullmatch(name):
            raise DeployError(
                f"{name!r} is not a name for a file of a job", where="request", fix="", kind="bad-request"
            )
    lock.refuse_a_former_holder(asked)
    state = files.state_dir(asked.state_dir)
    if order.run is None:
        run = staged_in(files.wanted_run(asked))
    else:
        run = in_place(order.run.as_json(), state, asked.gang, order.word, order.beside, spared=order.spared)
    with os_failures(state):
        supervision.adopt_orphans()
        if order.run is not None:
            _refuse_unready(run)
            if run.container is not None:
                stage.make_cache(state, run)
        with _folder(state, run) as folder, log_since_now(run.path(ENGINE_LOG)) as engine_log:
            _put(order, run, folder)
            _carry_out(order, run, folder, engine_log)


def in_place(staged: Mapping[str, Any], state: str, gang: str, word: str, fix: str, *, spared: bool = False) -> Run:
    """What runs in the engine's place. Raises DeployError where an engine of the gang is up, unless spared; an armed
    agent has started nothing yet."""
    folder = None if spared else files.current_run(state, gang)
    if folder is not None and processes.alive(*report.agent(folder)):
        last = files.read_as(Report, f"{folder}/{REPORT_FILE}")
        if last is None or last.state not in (AgentState.STAGED, AgentState.ARMED):
            doing = last.state.value if last else "unreadable"
            raise DeployError(
                f"an engine of this gang is running ({doing}): both would be slow",
                where=folder,
                fix=fix,
                kind="running",
            )
    run = run_of(staged, files.run_dir(state, gang, f"{word}-{os.getpid()}"))
    return replace(run, engine_user=stage.engine_user(run.engine_user))


def _refuse_unready(run: Run) -> None:
    with contextlib.closing(GpuMemory(run.gpus if run.device == "cuda" else ())) as memory:
        failures = preflight.check(run, memory, serves=False)
    if failures:
        raise failures[0]
    for name, least in run.limits.items():
        guardian.raise_limit(name, least)


@contextlib.contextmanager
def _folder(state: str, run: Run) -> Iterator[pathlib.Path]:
    """The program's own. Those of jobs whose node application was killed go first."""
    above = pathlib.Path(state, "tmp")
    stage.make_folders(state, str(above))
    for left in above.glob("job-*"):
        if not processes.alive(*map(int, left.name.split("-")[1:3])):
            shutil.rmtree(left, ignore_errors=True)
    folder = above / f"job-{os.getpid()}-{processes.start_of(os.getpid())}"
    folder.mkdir(mode=0o700)
    try:
        if (owner := run.owner()) is not None:
            os.chown(folder, *owner)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(order: JobOrder, run: Run, folder: pathlib.Path) -> None:
    """Its files, and modules that the environment (an image's can't be seen) lacks."""
    below = pathlib.Path(run.venv_python).parent.parent
    lacking = {
        f"{name}.py": text
        for name, text in order.modules.items()
        if run.container is not None or not any(below.glob(f"lib/python*/site-packages/{name}"))
    }
    for name, text in {**order.files, **lacking}.items():
        files.write(str(folder / name), text, owner=run.owner())


def _carry_out(order: JobOrder, run: Run, folder: pathlib.Path, engine_log: Callable[[], Iterator[str]]) -> None:
    log = Output(re.compile(order.progress))
    child, remove = _begin(order, run, folder)
    try:
        if not follow(child, log, time.monotonic() + order.deadline_s):
            what = f"the {order.noun} did not finish within {order.deadline_s:.0f} s and was stopped"
            raise DeployError(what, where=order.word, fix=order.too_long, kind="deadline")
    finally:
        if child.poll() is None:
            remove()
        guardian.end(child)
    for word in sorted(run.hidden_words(), key=len, reverse=True):
        log.hide(word)
    if child.returncode == 0:
        if order.result:
            _tell_parts("result", _result(folder / order.result, order))
        decoded = _decoded(engine_log, re.compile(order.engine_log))
        for place in range(0, len(decoded), ROWS_AT_ONCE):
            tell({"decoded": decoded[place : place + ROWS_AT_ONCE]})
    _tell_parts("log", log.nccl)
    tell({"ended": child.returncode, "what": "" if child.returncode == 0 else guardian.last_words(log.last)})


def _tell_parts(name: str, text: str) -> None:
    for begin in range(0, len(text), PART_BYTES):
        tell({name: text[begin : begin + PART_BYTES]})


def _begin(order: JobOrder, run: Run, folder: pathlib.Path) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
    """The program, and what removes its container."""
    environment = {**order.env, "TMPDIR": str(folder)}
    if order.key and (key := run.authorization().removeprefix("Bearer ")):
        environment[order.key] = key
    if run.container is not None:
        name = f"{run.unit_name}-{order.word}"
        remove = partial(engine_container.remove_named, run.container.program, name)
        inside = {**engine_container.of_the_image(run.env), **environment}
        words = [*_container(order, run, run.container, name, folder, inside), *order.command]
        return _popen(words, "/", {**os.environ, **inside}, partial(guardian.die_with, os.getpid())), remove
    session, foreign = guardian.engine_environment(run), (*OF_THE_PLAN, "LD_PRELOAD")
    kept = {name: value for name, value in session.items() if name in run.env or not name.startswith(foreign)}
    become = partial(guardian.become, run, os.getpid())
    words = [*_SHELL, run.venv_python, *order.command]
    return _popen(words, str(folder), {**kept, **environment}, become), lambda: None


def _popen(words: list[str], cwd: str, env: Mapping[str, str], become: Callable[[], None]) -> subprocess.Popen[bytes]:
    """A container's program ends with its standard input."""
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        preexec_fn=become,  # noqa: PLW1509 - one thread
    )


def _container(
    order: JobOrder, run: Run, wanted: Container, name: str, folder: pathlib.Path, inside: dict[str, str]
) -> list[str]:
    """Up to its Python. Values reach the container by their names alone: a command line can be read by everybody.

    In the engine's place, limits, devices and mounts are those of templates/launch_container.sh.j2.
    """
    shows, home = [f"src={folder},dst={folder}"], str(folder)
    words = [*engine_container.run_words(wanted, name, run.owner()), "--workdir", str(folder)]
    if order.run is None:
        shows += [f"src={run.model_path},dst={run.model_path},readonly"] if run.model_path else []
    else:
        words += ["--ipc", "host", *_machine(run, wanted)]
        if os.path.isdir(caches := inside.get("XDG_CACHE_HOME", "")):
            shows, home = [*shows, f"src={caches},dst={caches}"], caches
    words += [word for show in shows for word in ("--mount", f"type=bind,{show}")]
    words += ["--env", f"HOME={home}", *(word for variable in sorted(inside) for word in ("--env", variable))]
    words += ["--entrypoint", "/bin/sh", wanted.image, "-c", ENDS_WITH_STDIN, "l40s-job"]
    return [*words, *_SHELL, engine_container.PYTHON]


def _machine(run: Run, order: Container) -> list[str]:
    if run.device != "cuda":
        return []
    words = [*_LIMITS, *_RIGHTS]
    if os.path.isdir(_DEVICES):
        words += ["--device", _DEVICES]
    if order.program == "docker":
        return [*words, "--gpus", '"device={}"'.format(",".join(map(str, run.gpus)))]
    return [*words, *(word for gpu in run.gpus for word in ("--device", f"nvidia.com/gpu={gpu}"))]


@dataclass
class Output:
    """What a program writes: the end of it, and NCCL's lines."""

    progress: re.Pattern[str] = re.compile(NEVER)
    last: str = ""
    nccl: str = ""
    said: int = 0
    """Bytes of its own lines."""
    _rest: dict[str, bytes] = field(default_factory=dict)

    def log(self, data: bytes) -> None:
        """More of what it prints."""
        self.last = (self.last + data.decode("utf-8", "replace"))[-KEPT_LOG:]
        for line in self._lines("log", data):
            if b"NCCL INFO" in line and len(self.nccl) < KEPT_NCCL:
                self.nccl += line.decode("utf-8", "replace") + "\n"

    def say(self, data: bytes) -> None:
        """Pass on its own lines; what is no JSON object is passed over. Raises DeployError for too much."""
        self.said += len(data)
        if self.said > MOST_BYTES:
            raise DeployError(
                f"the program said more than {MOST_BYTES >> 20} MiB",
                where="job",
                fix="l40s-deploy doctor",
                kind="too-much",
            )
        for line in map(parsed, self._lines("results", data)):
            if isinstance(line, dict):
                tell(line)

    def tick(self) -> None:
        """Say that we are here, and how far it is."""
        counts = self.progress.findall(self.last)
        tell({"answered": int(counts[-1][0]), "of": int(counts[-1][1])} if counts else {})

    def hide(self, word: str) -> None:
        """Take a secret out."""
        self.last, self.nccl = self.last.replace(word, "***"), self.nccl.replace(word, "***")

    def _lines(self, of: str, data: bytes) -> list[bytes]:
        *lines, rest = (self._rest.get(of, b"") + data).split(b"\n")
        self._rest[of] = rest[-KEPT_LOG:] if of == "log" else rest
        return lines


def follow(child: subprocess.Popen[bytes], output: Output, until: float, *, results: bool = True) -> bool:
    """Pass on what it says to its end; False where that is too late. Raises BrokenPipeError if the reader is gone.

    results: its standard output is lines of its own
    """
    assert child.stdout is not None and child.stderr is not None
    take = {child.stdout.fileno(): output.say if results else output.log, child.stderr.fileno(): output.log}
    last_word_at = time.monotonic()
    while take:
        ready, _, _ = select.select(list(take), [], [], TICK_S)
        for descriptor in ready:
            if data := os.read(descriptor, 65536):
                take[descriptor](data)
            else:
                del take[descriptor]
        if not ready and child.poll() is not None:
            return True  # what it left behind may hold the pipes open
        if time.monotonic() - last_word_at >= TICK_S:
            last_word_at = time.monotonic()
            output.tick()
        if reader_is_gone(0):
            raise BrokenPipeError
        if time.monotonic() > until:
            return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(max(0.1, until - time.monotonic()))
    return child.poll() is not None


def _decoded(engine_log: Callable[[], Iterator[str]], pattern: re.Pattern[str]) -> list[list[float]]:
    """What the engine's log has said meanwhile, the newest where it is very much."""
    matches = (pattern.search(shown(line)) for line in engine_log())
    rows = ([float(number) for number in match.groups(default="0")] for match in matches if match is not None)
    return list(deque(rows, maxlen=MOST_ROWS))


def _result(path: pathlib.Path, order: JobOrder) -> str:
    """What the program wrote; it belongs to another user, so that no link is followed."""
    wrong = partial(DeployError, kind="no-result", where=str(path), fix="l40s-deploy logs")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise wrong(f"the {order.noun} wrote no result") from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise wrong("the result is not a regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise wrong(f"the result is longer than {MOST_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")
