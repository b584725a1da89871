"""Our Ansible modules, run as Ansible runs them: arguments as JSON in, one JSON document out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
LOCKED = PLAYBOOKS / "roles/engine_env/library/l40s_locked.py"
RECORD = PLAYBOOKS / "library/l40s_record.py"
HOST = PLAYBOOKS / "library/l40s_host.py"
TAKE_BACK = PLAYBOOKS / "library/l40s_take_back.py"


def run(module: Path, **arguments: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(module), json.dumps({"ANSIBLE_MODULE_ARGS": arguments})],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    for name in ("Some_Package-1.0.dist-info", "torch-2.13.0+cpu.dist-info", "other-2.0.dist-info"):
        (packages / name).mkdir(parents=True)
    return tmp_path / "venv"


@pytest.mark.parametrize(
    ("lock", "missing"),
    [
        ("some.package==1.0\ntorch==2.13.0+cpu\n", []),
        ("some-package==1.0 --hash=sha256:00\n", []),
        ("other[extra]==2.0  # a remark\n", []),
        ("some_package==1.1\nother==2.0\n", ["some_package==1.1"]),
        ("absent==1.0\n", ["absent==1.0"]),
        ("absent==1.0 ; sys_platform == 'win32'\n# absent==1.0\n--find-links /absent==1\n\n", []),
    ],
)
def test_what_a_lock_names_and_an_environment_lacks(environment: Path, lock: str, missing: list[str]) -> None:
    assert run(LOCKED, path=str(environment), lock=lock)["missing"] == missing


def test_an_environment_that_is_not_there_lacks_all(tmp_path: Path) -> None:
    assert run(LOCKED, path=str(tmp_path / "none"), lock="a==1\nb==2\n")["missing"] == ["a==1", "b==2"]


def test_only_what_is_not_there_is_recorded_and_once(tmp_path: Path) -> None:
    record, fresh = tmp_path / "etc/prepared", tmp_path / "fresh"
    makes = [f"folder {tmp_path}", f"tree {fresh}", "user root", "package gcc", "sysctl kernel.numa_balancing=1"]
    expected = [f"tree {fresh}", "package gcc", "sysctl kernel.numa_balancing=1"]

    looked = run(RECORD, path=str(record), makes=makes, _ansible_check_mode=True)
    assert (looked["changed"], looked["added"], record.exists()) == (True, expected, False)

    assert run(RECORD, path=str(record), makes=makes)["added"] == expected
    assert record.read_text().splitlines() == expected
    assert (record.stat().st_mode & 0o777) == 0o644

    fresh.mkdir()
    later = run(RECORD, path=str(record), makes=[*makes, "sysctl kernel.numa_balancing=0"])
    assert (later["changed"], later["added"]) == (False, []), "the oldest value is the one to go back to"


def test_the_host_is_described_with_what_was_recorded(tmp_path: Path) -> None:
    record = tmp_path / "prepared"
    record.write_text("user l40s\npackage dpkg\npackage l40s-no-such\nsysctl a.b=1\n")
    found = run(
        HOST,
        manifest=str(record),
        python="3.1",
        packages=["bash", "l40s-no-such"],
        sysctls=["kernel.ostype", "no.such"],
    )
    if "msg" in found:
        assert "this needs root" in found["msg"]
        pytest.skip("not root")
    assert found["made"]["package"] == (["dpkg"] if found["debian"] else []), "only what is installed"
    assert set(found["limits"]) == {"memlock", "nofile"}
    assert (found["made"]["user"], found["made"]["file"]) == (["l40s"], [])
    assert found["sysctls"] == {"kernel.ostype": "Linux"}
    assert "l40s-no-such" in found["packages_missing"]
    assert not found["debian"] or "bash" not in found["packages_missing"]
    assert found["python_path"] == f"/usr/bin/python{found['python_version']}"


def taken_back(tmp_path: Path, wrote: str, now: str) -> tuple[str | None, list[str]]:
    """A recorded file's contents after the undo, None if it was removed, and the message."""
    file = tmp_path / "etc" / "l40s.conf"
    file.parent.mkdir()
    file.write_text(wrote)
    run(RECORD, path=str(tmp_path / "list"), makes=[f"file {file}"], wrote=[str(file)])
    assert not run(RECORD, path=str(tmp_path / "list"), makes=[f"file {file}"], wrote=[str(file)])["changed"]
    file.write_text(now)
    copies = str(tmp_path / "wrote")
    looked = run(TAKE_BACK, files=[str(file)], copies=copies, _ansible_check_mode=True)
    assert file.read_text() == now
    done = run(TAKE_BACK, files=[str(file)], copies=copies)
    assert (looked["changed"], looked["left"]) == (done["changed"], done["left"])
    return file.read_text() if file.exists() else None, done["left"]


OURS = "# ours\nroot - memlock unlimited\n"


@pytest.mark.turns(play=2)
@pytest.mark.parametrize(
    ("now", "rest", "said"),
    [
        (OURS, None, ""),
        (OURS + "alice - nofile 4096\n", "alice - nofile 4096\n", "stays with the 1 lines"),
        ("alice - nofile 4096\n" + OURS + "\n", "alice - nofile 4096\n\n", "stays with the 2 lines"),
        ("# ours\nroot - memlock 1024\n", "# ours\nroot - memlock 1024\n", "stays as it is"),
        (OURS + OURS, OURS, "stays with the 2 lines"),
    ],
)
def test_a_recorded_file_goes_and_what_somebody_added_stays(
    tmp_path: Path, now: str, rest: str | None, said: str
) -> None:
    found, left = taken_back(tmp_path, OURS, now)
    assert found == rest
    assert len(left) == bool(said)
    assert not said or said in left[0]


def test_a_file_that_an_older_release_recorded_goes_as_it_did_then(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    assert run(TAKE_BACK, files=[str(tmp_path / "f"), str(tmp_path / "none")], copies=str(tmp_path))["left"] == []
    assert not (tmp_path / "f").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="users are made by root")
@pytest.mark.turns(play=2)
@pytest.mark.parametrize("kept", ["models/M/config.json", ".ssh/authorized_keys", ".local/share/x", ".bashrc", ""])
def test_a_user_goes_with_an_empty_home_and_stays_with_what_somebody_put_there(tmp_path: Path, kept: str) -> None:
    """A real user, in a home below this test's folder."""
    name, home = f"l40st{os.getpid() % 100000}", tmp_path / "home"
    subprocess.run(["useradd", "--system", "--create-home", "--home-dir", home, name], check=True, capture_output=True)
    try:
        for ours in (".cache/kernels", ".local/state/l40s-deploy/gangs"):
            (home / ours).mkdir(parents=True)
        if kept:
            (home / kept).parent.mkdir(parents=True, exist_ok=True)
            (home / kept).write_text("somebody's")
        assert run(TAKE_BACK, users=[name], _ansible_check_mode=True)["changed"] is not bool(kept)
        assert home.is_dir()
        done = run(TAKE_BACK, users=[name, "l40s-nobody-made"])
        there = subprocess.run(["id", name], capture_output=True, check=False).returncode == 0
        assert there == home.is_dir() == bool(kept) != done["changed"]
        if kept:
            assert (home / kept).read_text() == "somebody's"
            assert kept.split("/", maxsplit=1)[0] in done["left"][0]
    finally:
        subprocess.run(["userdel", name], capture_output=True, check=False)
