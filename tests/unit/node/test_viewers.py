"""Who may see a state directory: files of ours that a group may read, and words for who may not."""

from __future__ import annotations

import grp
import json
import os
import stat
from pathlib import Path

import pytest

from orchestrator.node import files, viewers
from orchestrator.node.bounded_log import append_line
from orchestrator.node.engine.logfile import LogFile
from orchestrator.node.verbs import logs, report, stage
from orchestrator.protocol.errors import DeployError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
OWN_GROUP = grp.getgrgid(os.getegid()).gr_name
NOBODY = 65534


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that was given to the viewers' group, which is our own."""
    monkeypatch.setattr(viewers, "GROUP", OWN_GROUP)
    viewers._is_group.cache_clear()
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o2751)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def a_run(state: Path) -> Path:
    run = state / "gangs/g/runs/r1"
    stage.make_folders(str(state), str(run))
    for name in ("run.json", "report.json", "agent.json"):
        files.write_json(str(run / name), {})
    for name in ("key", "launch.sh"):
        files.write(str(run / name), "secret")
    files.write(str(state / "gangs/g/current"), "r1\n")
    append_line(str(run / "events.jsonl"), "{}")
    LogFile(str(run / "engine.log")).write(b"a prompt\n")
    return run


def test_viewers_may_read_reports_and_no_keys_plans_or_logs(state: Path) -> None:
    run = a_run(state)
    assert {mode(folder) for folder in (run, run.parent, run.parent.parent, state / "gangs")} == {0o2751}
    seen = {file.name for file in run.iterdir() if mode(file) == 0o640}
    assert seen == {"report.json", "agent.json", "events.jsonl"}
    assert {mode(file) for file in run.iterdir()} == {0o640, 0o600}
    assert mode(state / "gangs/g/current") == 0o640


def test_they_may_read_logs_where_a_file_says_so(state: Path) -> None:
    (state / "viewers-logs").write_text("")
    assert mode(a_run(state) / "engine.log") == 0o640


@pytest.mark.parametrize(
    ("user", "groups", "looks"),
    [
        (NOBODY, (os.getegid(),), True),
        (NOBODY, (), False),
        (0, (os.getegid(),), False),
        (os.geteuid(), (os.getegid(),), False),
    ],
)
def test_a_node_tells_who_only_looks(
    state: Path, monkeypatch: pytest.MonkeyPatch, user: int, groups: tuple[int, ...], *, looks: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getgroups", lambda: list(groups))
    answer = report.history({"state_dir": str(state), "gang": "g"})
    assert answer.get("only_looks", False) is looks


def test_without_viewers_nobody_else_may_read_anything(tmp_path: Path) -> None:
    run = a_run(tmp_path / "state")
    assert {mode(file) for file in run.iterdir()} == {0o600} and mode(run) == 0o711


@needs_root
@pytest.mark.parametrize("closed", ["gangs", "."])
def test_a_stranger_is_told_that_nobody_knows_and_never_that_nothing_runs(state: Path, closed: str) -> None:
    a_run(state)
    (state / "gangs").chmod(0o711)
    (state / closed).chmod(0o700)
    told = _as_nobody(state, lambda: report.answer({"state_dir": str(state), "gang": "g"}))
    assert "may not read" in told["what"] and "l40s_viewers: [" in told["fix"] and "ansible_user" in told["fix"]


@needs_root
def test_who_may_not_read_the_log_is_told_why(state: Path) -> None:
    run = a_run(state)
    for folder in (run, run.parent, run.parent.parent, state / "gangs"):
        folder.chmod(0o755)
    (state / "gangs/g/current").chmod(0o644)
    told = _as_nobody(state, lambda: logs.excerpt({"state_dir": str(state), "gang": "g", "run_id": "r1"}))
    assert "holds prompts" in told["what"] and "l40s_viewers_logs: true" in told["fix"]
    told = _as_nobody(state, lambda: stage.staged({"state_dir": str(state), "gang": "g", "run_id": "r1"}))
    assert "neither start nor change" in told["what"] and "log in as root" in told["fix"]


def _as_nobody(state: Path, asked: object) -> dict[str, str]:
    """The failure that this user gets."""
    for folder in (state.parent, *list(state.parents)[1:4]):
        folder.chmod(folder.stat().st_mode | 0o011)
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            text = json.dumps(asked())  # type: ignore[operator]
        except DeployError as failure:
            text = json.dumps(failure.as_json())
        except BaseException as defect:
            text = json.dumps({"what": repr(defect), "fix": ""})
        os.write(go, text.encode())
        os._exit(0)
    os.close(go)
    with os.fdopen(come, "rb") as stream:
        told: dict[str, str] = json.loads(stream.read())
    os.waitpid(child, 0)
    return told
