"""Verbs `check`, `stage` and `staged`: a run before it is armed, and what was staged last. They start nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pwd
import shutil
import time
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from typing import Any

from orchestrator.node import files, processes, supervision, viewers
from orchestrator.node.agent import preflight, record, staged_run, weights
from orchestrator.node.agent.preflight import NOTHING, OwnRun
from orchestrator.node.agent.staged_run import Run, run_of
from orchestrator.node.bounded_log import append_line
from orchestrator.node.engine import scratch
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.files import LAUNCH_FILE, RUN_FILE
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock, report
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import Report, ToldError
from orchestrator.protocol.staging import Ports, StagingRequest
from orchestrator.protocol.verbs import CheckAnswer, GangRequest, StageAnswer, StagedAnswer

RUNS_KEPT = 5
FAILED_KEPT, FAILED_BYTES = 100, 1 << 30
"""Runs that failed, beside these: so many at most, and no more than they take together."""


def check(request: dict[str, Any]) -> dict[str, Any]:
    """What `arm` would refuse of a run, before anything of it is staged and while the gang's last one serves.

    The request needs no key and no script; nothing is written. Ports and GPUs that the gang's own last run holds are
    free by then, and do not count as taken.
    """
    asked = request_of(GangRequest, request)
    state = files.state_dir(asked.state_dir)
    run = run_of(request, f"{files.gang_dir(state, asked.gang)}/runs/next")
    ports = (*run.ports.check_free, *([run.leader] if run.leads else []))  # its agent binds that when it is armed
    run = for_user(replace(run, ports=Ports(check_free=ports)))
    last = files.current_run(state, run.gang)
    with closing(GpuMemory(run.gpus)) as memory:
        failures = preflight.check(run, memory, _own(last) if last else NOTHING)
    return CheckAnswer(
        refusals=tuple(map(ToldError.of, failures)), checkpoint=weights.told_apart(run.model_path)
    ).as_json()


def _own(folder: str) -> OwnRun:
    everything = supervision.everything()
    known = [pid for pid, start in (report.agent(folder), *report.left_over(folder)) if processes.alive(pid, start)]
    pids = {*known, *(process.pid for process in supervision.descendants(known, everything))}
    run = files.read_as(StagingRequest, f"{folder}/{files.RUN_FILE}")
    if run is None:
        return OwnRun(pids=frozenset(pids))
    ports = {endpoint.port for endpoint in (*run.ports.check_free, run.leader)}
    return OwnRun(pids=frozenset(pids), ports=frozenset(ports), gpus=frozenset(run.gpus))


def stage(request: dict[str, Any]) -> dict[str, Any]:
    """Put a run's files on the node: run.json, the key, the launch script, a first report. It is the current one then.

    The launch script stays ours: the engine's user gets its text when it starts, and can't change it.
    """
    asked = request_of(GangRequest, request)
    lock.refuse_a_former_holder(asked)
    state = files.state_dir(asked.state_dir)
    folder = files.run_dir(state, asked.gang, asked.run_id)
    run = run_of(request, folder)
    with files.state_failures(state):
        staged_run.refuse_others_folder(folder)
        make_folders(state, folder)
        _refuse_beside_a_living_run(state, asked.gang)
        run = for_user(replace(run, launch_sha256=staged_run.digest_of(run)))
        make_cache(state, run)
        files.write_json(run.path(files.RUN_FILE), run.kept())
        files.write(run.path(files.KEY_FILE), run.key)
        before = os.path.basename(files.current_run(state, run.gang) or "")
        if run.secrets is not None:
            staged_run.keep_secrets(files.gang_dir(state, run.gang), run.secrets, run.owner(), before=before)
        files.write(run.path(files.LAUNCH_FILE), run.launch_script, mode=0o700)
        files.write_json(run.path(files.REPORT_FILE), record.staged(run, time.time()).as_json())
        files.write(f"{files.gang_dir(state, run.gang)}/current", run.run_id + "\n")
    _forget_old_runs(files.gang_dir(state, run.gang), run.run_id)
    return StageAnswer(folder=folder, checkpoint=weights.told_apart(run.model_path)).as_json()


def make_folders(state: str, folder: str) -> None:
    """0711, with what viewers may see where there are any: the engine's user may pass through to its launch script."""
    mode = viewers.folder_mode(state)
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for part in (path, *path.parents):
        if part.stat().st_uid == os.geteuid():
            part.chmod(mode)
        if part == pathlib.Path(state):  # whose text may have `//`: above it, nothing is ours
            break


def make_cache(state: str, run: Run) -> None:
    """The plan's cache folder belongs to whom the engine runs as: it keeps compiled kernels there."""
    cache = run.env.get("XDG_CACHE_HOME", "")
    if not cache.startswith(f"{state}/") or ".." in cache.split("/"):
        return
    folder = pathlib.Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    if (owner := run.owner()) is not None and folder.stat().st_uid != owner[0]:
        os.chown(folder, *owner)
    folder.chmod(0o700)
    folder.parent.chmod(0o711)


def _refuse_beside_a_living_run(state: str, gang: str) -> None:
    folder = files.current_run(state, gang)
    if folder is not None and processes.alive(*(agent := report.agent(folder))):
        what = f"an agent of this gang is already running (pid {agent[0]}, run {os.path.basename(folder)})"
        raise DeployError(what, where=folder, fix=f"l40s-deploy down {gang}", kind="running")
    for pid, shown in report.without_files(state).items():
        if shown.agent.gang == gang and not shown.agent.stranger:
            what = f"an agent of this gang is already running (pid {pid}), and no file here tells of it"
            raise DeployError(what, where=state, fix=f"l40s-deploy down {gang}", kind="running")


def engine_user(asked: str | None) -> str | None:
    """The named user, else the one who called sudo: the engine is never root unless configured."""
    if asked:
        return asked
    caller = os.environ.get("SUDO_USER", "")
    return caller if os.geteuid() == 0 and caller not in ("", "root") else None


def for_user(run: Run) -> Run:
    """The run with whom its engine runs as. Raises DeployError where it has no such user, or we can't become him."""
    run = replace(run, engine_user=engine_user(run.engine_user))
    if run.engine_user is None:
        return run
    try:
        user = pwd.getpwnam(run.engine_user)
    except KeyError:
        what = f"the user {run.engine_user!r} does not exist on this node"
        fix = "create it with `l40s-deploy prepare --tags engine_user`, or set another l40s_engine_user"
        raise DeployError(what, where="/etc/passwd", fix=fix, kind="no-user") from None
    if os.geteuid() not in (0, user.pw_uid):
        what = f"the engine must run as {run.engine_user!r}, which only root can do"
        raise DeployError(
            what, where="l40s_engine_user", fix="set `ansible_become: true`, or remove l40s_engine_user", kind="no-root"
        )
    return run


def _forget_old_runs(gang: str, current: str) -> None:
    """The newest ones stay, and those that failed, up to a size, the last one whatever its size and whatever came after
    it: `why` is asked days later, and how often a guard restarted is counted. Of the others the report stays."""
    folders = sorted(pathlib.Path(gang, "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    older = [folder for folder in folders if folder.name != current]
    for folder in older:
        scratch.remove(str(folder))
    failed = [folder for folder in reversed(older) if _failed(folder)]
    sizes = accumulate(map(_size, failed))
    stay = [folder for folder, size in zip(failed, sizes, strict=True) if folder is failed[0] or size <= FAILED_BYTES]
    for folder in folders[:-RUNS_KEPT]:
        if folder.name != current and folder not in stay[:FAILED_KEPT]:
            _keep_report(gang, str(folder))
            shutil.rmtree(folder, ignore_errors=True)


def _keep_report(gang: str, folder: str) -> None:
    """A full disk prevents no start."""
    if kept := report.raw_of(folder):
        with contextlib.suppress(OSError):
            append_line(f"{gang}/{files.PAST_FILE}", json.dumps(kept, separators=(",", ":")))


def _size(folder: pathlib.Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _failed(folder: pathlib.Path) -> bool:
    """Something in it has ended for a reason: an agent writes down the first cause, its own or the gang's."""
    kept = files.read_as(Report, str(folder / files.REPORT_FILE))
    return kept is not None and (kept.cause or kept.verdict) is not None


def staged(request: dict[str, Any]) -> dict[str, Any]:
    """What was staged here last, so that the same plan can be started again by anybody: the request without its key and
    script, and the script.

    Raises DeployError if they were changed since, or could have been.
    """
    folder = files.wanted_run(request_of(GangRequest, request))
    viewers.refuse_unreadable_plan(f"{folder}/{RUN_FILE}")
    staged, script = files.read_json(f"{folder}/{RUN_FILE}"), ""
    if staged and os.path.lexists(f"{folder}/{LAUNCH_FILE}"):
        script = staged_run.script_of(run_of(staged, folder)).decode("utf-8", "surrogateescape")
    return StagedAnswer(request=staged, launch_script=script).as_json()
