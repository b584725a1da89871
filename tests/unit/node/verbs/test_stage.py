"""What staging makes and keeps."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from orchestrator.node import files
from orchestrator.node.agent.staged_run import staged_in
from orchestrator.node.verbs import arm, report, stage
from orchestrator.protocol.errors import DeployError


def staged(state: Path, number: int = 1, **more: object) -> Path:
    one = {"run_id": f"r{number}", "gang": "gang0", "node": "node0", "node_rank": 0, "nnodes": 1, "key": "00"}
    where = {"state_dir": str(state), "leader": {"address": "127.0.0.1", "port": 7700}}
    stage.stage({**one, **where, "argv": ["/bin/true"], "launch_script": "#!/bin/sh\nexec /bin/true\n", **more})
    folder = state / "gangs/gang0/runs" / f"r{number}"
    os.utime(folder, (number, number))
    return folder


@pytest.mark.parametrize(("allowed", "older"), [(1 << 30, ["r2", "r3"]), (0, ["r3"])])
def test_runs_that_failed_are_kept_by_size_and_the_last_one_always(
    allowed: int, older: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "FAILED_BYTES", allowed)
    for number in range(1, 12):
        folder = staged(tmp_path, number)
        if number in (2, 3):
            report = json.loads((folder / "report.json").read_text())
            cause = {"node": "node0", "text": "TP0 was killed"}
            (folder / "report.json").write_text(json.dumps({**report, "state": "failed", "cause": cause}))
            os.utime(folder, (number, number))
    kept = sorted((path.name for path in (tmp_path / "gangs/gang0/runs").iterdir()), key=lambda name: int(name[1:]))
    assert kept == [*older, "r7", "r8", "r9", "r10", "r11"]


def test_no_folder_above_the_state_directory_gets_another_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[Path] = []
    monkeypatch.setattr(Path, "chmod", lambda path, _: changed.append(path))
    stage.make_folders(f"{tmp_path}//state", f"{tmp_path}//state/tmp")
    assert changed == [tmp_path / "state/tmp", tmp_path / "state"]


def test_a_systemd_run_that_ends_without_a_word_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, ended = staged_in(str(staged(tmp_path))), subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(DeployError, match="systemd-run: ended with status -9"):
        arm._start_unit(run, ["/bin/true"])


def test_a_full_disk_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(DeployError) as told, files.state_failures(str(tmp_path)):
        raise OSError(28, os.strerror(28), str(tmp_path / "run.json"))
    assert told.value.kind == "no-space" and "the disk is full" in told.value.what
    assert told.value.fix.startswith(f"free space (`df -h {tmp_path}`)") and "access" not in told.value.fix


def test_the_cache_folder_is_made_for_the_engine_alone(tmp_path: Path) -> None:
    cache = tmp_path / "state/cache/sglang-0.5.23"
    staged(tmp_path / "state", env={"XDG_CACHE_HOME": str(cache)})
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize("outside", ["{}/elsewhere", "{}/state/../elsewhere", ""])
def test_a_cache_elsewhere_is_the_operators_own_business(tmp_path: Path, outside: str) -> None:
    staged(tmp_path / "state", env={"XDG_CACHE_HOME": outside.format(tmp_path)})
    assert not (tmp_path / "elsewhere").exists()


def test_of_a_run_whose_files_went_the_report_stays_for_thirty_days(tmp_path: Path) -> None:
    for number in range(1, 41):
        staged(tmp_path, number)
    asked = {"state_dir": str(tmp_path), "gang": "gang0"}
    runs = [one["run_id"] for one in report.history({**asked, "older": True})["reports"]]
    assert sorted(runs, key=lambda name: int(name[1:])) == [f"r{number}" for number in range(1, 41)]
    assert len(report.history(asked)["reports"]) == stage.RUNS_KEPT
    past = tmp_path / "gangs/gang0/past.jsonl"
    old = [{**json.loads(line), "started_at": 1.0} for line in past.read_text().splitlines()]
    past.write_text("".join(f"{json.dumps(line)}\n" for line in old) + "{cut")
    assert len(report.history({**asked, "older": True})["reports"]) == stage.RUNS_KEPT
