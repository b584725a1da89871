"""Steps that take minutes show progress: without a terminal, a line now and then, with rate and time left."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.commands import checkpoint, copies
from orchestrator.checkpoint.steps.chain import Hop
from orchestrator.cli import progress, transfers
from orchestrator.cli.main import main
from orchestrator.cli.screen import Screen
from orchestrator.hosts.steps.bundle import StackBundle
from orchestrator.protocol.jobs import HubLine, Progress

SETUP = Path(__file__).resolve().parents[3] / "scripts" / "setup.sh"
GIB = 1 << 30


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.NowAndThen, "due", lambda _: True)


def reblocking() -> None:
    with transfers.TransferPicture(Screen()) as picture:
        for done in (1, 2, 3):
            checkpoint._show_pace(
                picture, "re-blocking", Progress(total=4 * GIB, done=done * GIB, shards=163, shards_done=40 * done)
            )
            time.sleep(0.02)


def downloading() -> None:
    with transfers.TransferPicture(Screen()) as picture:
        for done in (1, 2, 3):
            copies._show_pace(picture, "node0", HubLine(doing="downloading", done=done * GIB, total=4 * GIB, files=9))
            time.sleep(0.02)


def pushing() -> None:
    with copies._PushPicture(Screen()) as picture:
        for done in (1, 2, 3):
            picture.moved([Hop("node1", "fetching", done * GIB)], 4 * GIB, 4 * GIB)
            time.sleep(0.02)


def verifying() -> None:
    with copies._VerifyPicture(Screen()) as picture:
        for done in (1, 2, 3):
            picture.read("node3", done * GIB, 4 * GIB)
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (reblocking, "re-blocking: 120 of 163 shards, 3.00 GiB of 4.00 GiB, "),
        (downloading, "node0: downloading 3.00 GiB of 4.00 GiB, "),
        (pushing, "node1: 3.00 GiB of 4.00 GiB, "),
        (verifying, "node3: 3.00 GiB of 4.00 GiB read, "),
    ],
)
def test_bytes_rate_and_time_left(work: Callable[[], None], wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    work()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(wanted), line
    rate, left = line.removeprefix(wanted).split(", ")
    assert rate.endswith("GiB/s") and left == "0:00 left"


def test_a_bundle_counts_its_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def build(_: Any, __: Any, tell: Callable[[str, int, int], None], **___: Any) -> StackBundle:
        for place in (1, 2, 3):
            tell(f"package-{place}", place, 4)
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.hosts.steps.stack.build", build)
    assert main(["stack", "build", "sglang-0.5.23-cpu", "--out", str(tmp_path / "x.bundle")]) == 130
    said = capsys.readouterr().err
    assert "3 of 4: package-3, 0:00 so far, about 0:00 left" in said


def test_setup_says_that_a_long_step_is_alive_and_keeps_its_exit_status() -> None:
    lines = SETUP.read_text()
    functions = "".join(f"{name}(){lines.partition(f'{name}()')[2].partition(end)[0]}{end}" for name, end in
                        (("say", "}\n"), ("alive", "\n}\n")))  # fmt: skip
    script = f"set -euo pipefail\n{functions}\nalive 'installing' sh -c 'sleep 1; echo out; exit 3'"
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": "/usr/bin:/bin", "EVERY_S": "0.1"}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and done.stdout == "out\n"
    assert re.search(r"^setup: installing: \d+ s so far$", done.stderr, re.M), done.stderr
    assert time.monotonic() - began < 50, "nothing is left that holds the output open"
    assert lines.count("alive ") >= 4, "the slow steps are run by it"
