"""A gang that an older commit's wheel started is operated by this one: seen, compared, restarted, guarded, changed,
rolled back, ended. The wheel is built from the repository's history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.older_release import COMMIT, RUN, unpacked
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import UP_S, SmallLab, guarding, small_lab
from tests.support.waiting import slack, until

from .conftest import needs_root

pytestmark = [pytest.mark.lab, pytest.mark.long, needs_root]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that commit's wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    tree, built, place = folder / "tree", folder / "built", folder / "installed"
    tree.mkdir()
    if not unpacked(tree):
        pytest.skip(f"this copy of the repository has no commit {COMMIT}")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(tree)], check=True
    )
    (made,) = built.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(place), str(made)], check=True)
    return place


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("olderwheel") as made:
        yield made


@pytest.fixture(autouse=True)
def started(lab: SmallLab, wheel: Path) -> Iterator[None]:
    """The gang serves, started by the older wheel; it is down afterwards."""
    old(lab, wheel, "up", "--model", lab.model)
    yield
    lab.deploy("down", "--now")
    assert lab.engine_processes() == {}


def old(lab: SmallLab, wheel: Path, *words: str) -> str:
    """Run a verb of the older wheel."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        env={**os.environ, **lab.environment, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=UP_S["standin"] * slack(),
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_it_is_seen_compared_and_restarted(lab: SmallLab) -> None:
    before = lab.gang()
    assert before["state"] == "ready"
    assert lab.deploy("why", code=None).returncode in (0, 3)
    lab.deploy("plan", "--model", lab.model, "--diff")
    done = lab.deploy("restart", timeout=UP_S["standin"])
    told = done.stdout + done.stderr
    assert "ignored, since this release has no such key: cache" in told, told
    after = lab.gang()
    assert (after["state"], after["run_id"] == before["run_id"]) == ("ready", False)
    again = lab.deploy("restart", timeout=UP_S["standin"])
    assert "no such key" not in again.stdout + again.stderr  # it has this release's form now


def test_a_guard_restarts_it_after_a_kill(lab: SmallLab) -> None:
    before = lab.gang()["run_id"]
    words = [*L40S_DEPLOY, "guard", "gang0", "--golden-every", "0", "--pause", "0.1"]
    with guarding(words, lab.environment, lab.folder / "guard.txt"):
        node, pid = lab.rank(1)
        lab.on(node, f"kill -KILL {pid}")
        until(lambda: _is_up_again(lab, before), UP_S["standin"], (lab.folder / "guard.txt").read_text)


def _is_up_again(lab: SmallLab, before: str) -> bool:
    gang = lab.gang()
    return bool(gang["state"] == "ready" and gang["run_id"] != before)


def test_its_plan_is_changed_and_rolled_back_to(lab: SmallLab) -> None:
    before = lab.gang()["plan_id"]
    words = ("--", "--max-running-requests", "8")
    lab.deploy("up", "--model", lab.model, "--replace", *words, timeout=UP_S["standin"])
    changed = lab.gang()
    assert (changed["state"], changed["plan_id"] == before) == ("ready", False)
    lab.deploy("rollback", timeout=UP_S["standin"])
    back = lab.gang()
    assert (back["state"], back["plan_id"]) == ("ready", before)


def test_the_older_one_sees_and_ends_what_this_one_started(lab: SmallLab, wheel: Path) -> None:
    lab.deploy("restart", timeout=UP_S["standin"])
    assert '"ready"' in old(lab, wheel, "status", "--json")
    old(lab, wheel, "down", "--now")
    assert lab.engine_processes() == {}
