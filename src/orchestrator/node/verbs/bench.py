"""Verb `bench`: the engine's own benchmark client on this node, as the engine's user and without a GPU.

Lines say how far it is twice a second; at the end come the parts of its result file, as often as it takes, and its
last words. When the reader is gone the client is stopped. The API key reaches it by its environment alone.
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
import tempfile
import time
from collections import deque
from functools import partial
from typing import Any

from orchestrator.node import files, kernel
from orchestrator.node.agent.run import Run, staged_in
from orchestrator.node.engine import engine_container, helper_process, scratch
from orchestrator.node.engine.guardian import engine_environment
from orchestrator.node.engine.logfile import LogSince
from orchestrator.node.engine.watch import shown
from orchestrator.node.failure import Failure
from orchestrator.node.files import ENGINE_LOG
from orchestrator.node.os_failure import os_failures
from orchestrator.node.requests import request_of
from orchestrator.node.telling import PART_BYTES, TICK_S, reader_is_gone, tell
from orchestrator.node.verbs import client_container
from orchestrator.protocol.verbs import BenchLine, BenchRequest

MOST_BYTES = 64 << 20
"""Of a result file; 256 answers of 200 tokens take about a megabyte."""
KEPT_LOG = 16 << 10
MOST_ROWS, ROWS_AT_ONCE = 4096, 256
"""Lines on decoding: one in 40 steps, so that a run of half an hour has some hundreds."""
_REFUSED = re.compile(r"\b(?:Unauthorized|401)\b")
"""What both versions' clients end with where their first request is refused."""
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def stream(request: dict[str, Any]) -> None:
    """Run it once."""
    asked = request_of(BenchRequest, request)
    run = staged_in(files.wanted_run(asked))
    if not asked.command or not _MODULE.fullmatch(asked.command[0]):
        raise Failure("bad-request", f"no module to run: {asked.command[:1]}", "request")
    with os_failures(run.folder):
        folder = _folder(run)
        try:
            with LogSince(run.path(ENGINE_LOG)) as engine_log:
                _measure(asked, run, folder, engine_log)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _folder(run: Run) -> pathlib.Path:
    """Below the run's own temporary directory, which goes with the run whatever becomes of us."""
    below = scratch.place(run.folder)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=below if os.path.isdir(below) else None))
    if (owner := helper_process.owner(run)) is not None:
        os.chown(folder, *owner)
    return folder


def _measure(asked: BenchRequest, run: Run, folder: pathlib.Path, engine_log: LogSince) -> None:
    paths = {"{dataset}": str(folder / "dataset.json"), "{result}": str(folder / "result.jsonl")}
    files.write(paths["{dataset}"], asked.dataset, owner=helper_process.owner(run))
    kernel.adopt_orphans()
    child = _start(asked, run, folder, [paths.get(word, word) for word in asked.command])
    try:
        log = _follow(child, re.compile(asked.progress), asked.deadline_s)
    finally:
        if run.container is not None and child.poll() is None:
            client_container.end(run, run.container)
        helper_process.end(child)
    for word in sorted(run.hidden_words(), key=len, reverse=True):
        log = log.replace(word, "***")
    if child.returncode != 0:
        said = helper_process.last_words(log)
        fix = "check `l40s-deploy status` and `l40s-deploy logs`"
        if "No module named" in said and run.container is None:
            fix = f"install that package: `{run.venv_python} -m pip install PACKAGE`"
        elif _REFUSED.search(said):
            again = f"start it again: `l40s-deploy restart {run.gang}`"
            fix = f"the engine does not accept the API key of this run; {again}"
        what = f"the benchmark client ended with status {child.returncode}: {said}"
        raise Failure("client-failed", what, f"{run.venv_python or engine_container.PYTHON} -m {asked.command[0]}", fix)
    text = _result(paths["{result}"])
    for begin in range(0, len(text), PART_BYTES):
        tell(BenchLine(result=text[begin : begin + PART_BYTES]).as_json())
    decoded = _decoded(engine_log, re.compile(asked.decode))
    for place in range(0, len(decoded), ROWS_AT_ONCE):
        tell(BenchLine(decoded=decoded[place : place + ROWS_AT_ONCE]).as_json())
    tell(BenchLine(log=log).as_json())


def _start(asked: BenchRequest, run: Run, folder: pathlib.Path, command: list[str]) -> subprocess.Popen[bytes]:
    ours = {**_environment(run, folder), **_left_out(asked, run, folder)}
    if run.container is not None:
        return client_container.start(run, run.container, command, folder, ours)
    return subprocess.Popen(
        [run.venv_python, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**{name: value for name, value in engine_environment(run).items() if name != "LD_PRELOAD"}, **ours},
        preexec_fn=partial(helper_process.become, run, os.getpid()),  # noqa: PLW1509 - one thread
    )


def _decoded(engine_log: LogSince, pattern: re.Pattern[str]) -> tuple[tuple[float, ...], ...]:
    """What the engine's log has said of decoding meanwhile, the newest where it is very much."""
    found = (pattern.search(shown(line)) for line in engine_log.lines())
    rows = (tuple(float(number) for number in match.groups(default="0")) for match in found if match is not None)
    return tuple(deque(rows, maxlen=MOST_ROWS))


def _left_out(asked: BenchRequest, run: Run, folder: pathlib.Path) -> dict[str, str]:
    """Modules that the environment (or the image) may not have, and that the client imports without need."""
    below = pathlib.Path(run.venv_python).parent.parent
    place = folder / "left_out"
    for name, text in asked.left_out.items():
        if not _MODULE.fullmatch(name):
            continue
        if run.container is None and any(below.glob(f"lib/python*/site-packages/{name}")):
            continue
        place.mkdir(mode=0o755, exist_ok=True)
        files.write(str(place / f"{name}.py"), str(text), mode=0o644)
    return {"PYTHONPATH": str(place)} if place.is_dir() else {}


def _environment(run: Run, folder: pathlib.Path) -> dict[str, str]:
    """In addition to the engine's: no GPU, no address but the engine's, no internet for the client."""
    environment = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder),
    }
    key = run.authorization().removeprefix("Bearer ")
    return {**environment, "OPENAI_API_KEY": key} if key else environment


def _follow(child: subprocess.Popen[bytes], progress: re.Pattern[str], deadline_s: float) -> str:
    """Tell how far it is until it has ended; its last words. Raises BrokenPipeError if the reader is gone."""
    assert child.stdout is not None
    end, told_at, kept = time.monotonic() + deadline_s, 0.0, b""
    while True:
        ready, _, _ = select.select([child.stdout], [], [], TICK_S)
        data = os.read(child.stdout.fileno(), 65536) if ready else b""
        kept = (kept + data)[-KEPT_LOG:]
        if ready and not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, end - time.monotonic()))
            return kept.decode("utf-8", "replace")
        if reader_is_gone(0):
            raise BrokenPipeError
        now = time.monotonic()
        if now > end:
            fix = "check `l40s-deploy status`; allow more time with --timeout, or use fewer requests"
            raise Failure(
                "deadline", f"the benchmark did not finish within {deadline_s:.0f} s and was stopped", "bench", fix
            )
        if now - told_at >= TICK_S:
            told_at = now
            counts = progress.findall(kept.decode("utf-8", "replace"))
            if counts:
                tell(BenchLine(answered=int(counts[-1][0]), of=int(counts[-1][1])).as_json())


def _result(path: str) -> str:
    """What the client wrote; it belongs to another user, so that no link is followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Failure("no-result", "the benchmark client wrote no result", path, "l40s-deploy logs") from None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Failure("no-result", "the result is not a regular file", path, "l40s-deploy logs")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Failure("no-result", f"the result is longer than {MOST_BYTES >> 20} MiB", path, "use fewer requests")
    return data.decode("utf-8", "replace")
