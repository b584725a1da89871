"""Steps that take minutes show progress: where no line can be redrawn in place, a line now and then, with rate and time
left."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.checkpoint.commands import checkpoint, copies
from orchestrator.checkpoint.steps.chain import Hop
from orchestrator.cli import progress, transfers
from orchestrator.cli.main import main
from orchestrator.cli.progress import words_in_place
from orchestrator.cli.screen import Screen
from orchestrator.cli.transfers import counting
from orchestrator.hosts.commands import prepare
from orchestrator.hosts.steps.bundle import StackBundle
from orchestrator.hosts.steps.runner import HostEvent
from orchestrator.protocol.jobs import HubLine, Progress, ReblockLine


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_line_is_said_once_an_interval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with words_in_place(Screen(), "tuning", every_s=30.0) as update:
        for clock.now in (101.0, 129.0, 130.0, 159.0, 161.0):
            update(f"at {clock.now:.0f}")
    assert capsys.readouterr().err.splitlines() == ["tuning ...", "at 130", "at 161"]


def test_what_is_counted_says_how_fast_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(transfers, "time", clock)
    with counting(Screen(), "requests answered") as at:
        for clock.now, done in ((100.0, 0), (104.0, 8), (110.0, 20), (140.0, 80), (145.0, 100)):
            at("run", done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "run: requests answered, 8 of 100, 2 a second, 0:46 left ...",
        "run: requests answered, 80 of 100, 2 a second, 0:10 left ...",
    ]


SETUP = Path(__file__).resolve().parents[3] / "scripts" / "setup.sh"
GIB = 1 << 30


PICTURES: dict[str, tuple[type[transfers.TransferPicture], Callable[[Any, int], object]]] = {
    "re-blocking: 120 of 163 shards, 3.0 GiB of 4.0 GiB, ": (
        transfers.TransferPicture,
        lambda picture, done: checkpoint._show_pace(
            picture,
            ReblockLine(
                doing="re-blocking",
                progress=Progress(total=4 * GIB, done=done * GIB, shards=163, shards_done=40 * done),
            ),
        ),
    ),
    "node0: downloading 3.0 GiB of 4.0 GiB, ": (
        transfers.TransferPicture,
        lambda picture, done: copies._show_pace(
            picture, "node0", HubLine(doing="downloading", done=done * GIB, total=4 * GIB, files=9)
        ),
    ),
    "node1: 3.0 GiB of 4.0 GiB, ": (
        copies._PushPicture,
        lambda picture, done: picture.moved([Hop("node1", "fetching", done * GIB)], 4 * GIB, 4 * GIB),
    ),
    "node3: 3.0 GiB of 4.0 GiB read, ": (
        copies._VerifyPicture,
        lambda picture, done: picture.read("node3", done * GIB, 4 * GIB),
    ),
}
"""The last line of a picture that is shown 1, 2, 3 of 4 GiB, but for rate and time left."""


@pytest.mark.parametrize("wanted", PICTURES)
def test_bytes_rate_and_rest(wanted: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.NowAndThen, "due", lambda _: True)
    kind, show = PICTURES[wanted]
    with kind(Screen()) as picture:
        for done in (1, 2, 3):
            show(picture, done)
            time.sleep(0.02)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(wanted), line
    rate, left = line.removeprefix(wanted).split(", ")
    assert rate.endswith("GiB/s") and left == "0:00 left"


def test_a_bundle_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def build(_: Any, __: Any, tell: Callable[[str, int, int], None], **___: Any) -> StackBundle:
        for place in (1, 2, 3):
            tell(f"package-{place}", place, 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.NowAndThen, "due", lambda _: True)
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


def test_lines_say_which_task_of_how_many_and_that_a_long_one_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_LINE_EVERY_S", 0.05)
    said: list[str] = []

    def more() -> str:
        said.append(capsys.readouterr().err)
        return "".join(said)

    with prepare._PrepareProgress(Screen()) as shown:
        shown.tasks.update(node0=41)
        shown(HostEvent("node0", "Look at the host", "started"))
        shown(HostEvent("node0", "Look at the host", "ok", seconds=0.2))
        shown(HostEvent("node0", "Install the packages", "started"))
        until(lambda: "node0: task 2 of 41: Install the packages, 0 s so far" in more(), 30.0, "a sign of life")
        shown(HostEvent("node0", "Install the packages", "changed", seconds=31.0))
        shown(HostEvent("node1", "Look at the host", "started"))
        shown(HostEvent("node1", "Look at the host", "failed", "no"))
    text = more()
    assert "node0: task 2 of 41: Install the packages (31.0 s)" in text
    assert "node1: task 1: failed: Look at the host" in text
