"""A snapshot with a file that never answers: it takes its time limit, and the rest is complete."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.machine_files import reference_machine
from tests.support.waiting import slack

from orchestrator.node import processes, supervision
from orchestrator.node.look import reading
from orchestrator.node.look.hardware import PARTS
from orchestrator.node.look.reading import ProgressPage, SnapshotReader, StallTimer, read_hardware

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*:DeprecationWarning"
)  # pytest has threads, a node has none


def plain(reader: SnapshotReader) -> None:
    reader.text("/sys/before")
    reader.text("/sys/stuck")
    reader.text("/sys/after")


def last(reader: SnapshotReader) -> None:
    reader.text("/sys/last")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys").mkdir()
    for name in ("before", "stuck", "after", "last"):
        (tmp_path / "sys" / name).write_text(name)
    return tmp_path


def hang_at(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel blocks whoever opens this path, as a wedged driver does."""
    really_open = os.open

    def slow_open(name: str, *rest: int, **more: int) -> int:
        while str(name).endswith(path):
            time.sleep(60)
        return really_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", slow_open)


def test_a_whole_machine_is_read(tmp_path: Path) -> None:
    machine = reference_machine()
    machine.put_below(tmp_path)
    read = read_hardware(str(tmp_path), PARTS)
    assert machine.links.items() <= read["links"].items()
    assert {path for path in machine.files if path.endswith("/vendor")} <= set(read["files"])
    assert read["errors"] == {}


def test_a_file_that_hangs_is_named_and_the_rest_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang_at("/sys/stuck", monkeypatch)
    monkeypatch.setattr(reading, "FILE_DEADLINE_S", 0.2)
    started = time.monotonic()
    read = read_hardware(str(root), {"a": plain, "b": last})
    assert read["errors"] == {"/sys/stuck": "ETIMEDOUT"}
    assert read["files"] == {"/sys/before": "before", "/sys/after": "after", "/sys/last": "last"}
    assert time.monotonic() - started < 5 * slack()


def test_the_whole_has_a_deadline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang_at("/sys/stuck", monkeypatch)
    monkeypatch.setattr(reading, "DEADLINE_S", 0.3)
    started = time.monotonic()
    parts = {"first": last, "second": plain}
    read = read_hardware(str(root), parts)
    assert read["files"]["/sys/last"] == "last"
    assert read["errors"]["second"] == "ETIMEDOUT"
    assert time.monotonic() - started < 5 * slack()


def process_in(state: str) -> processes.Process:
    return processes.Process(pid=1, parent=0, start=0, state=state, exit_code=0)


@pytest.mark.parametrize(
    ("state", "used", "counted"),
    [("R", 0.0, 0.0), ("D", 0.0, 0.2), ("S", 0.0, 0.2), ("T", 0.0, 0.2), ("R", 7.0, 7.0)],
    ids=["waits for a processor", "sleeps in the kernel", "sleeps", "stopped", "computes"],
)
def test_only_sleep_and_processor_time_count(
    state: str, used: float, counted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 60.0, 60.0])  # whoever looks had no processor for a minute either
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(processes, "read", lambda _: process_in(state))
    had = iter([0.0, used, used])
    monkeypatch.setattr(supervision, "processor_s", lambda _: next(had))
    patience = StallTimer(1)
    assert patience.spent_s(None) == pytest.approx(counted)
    assert patience.spent_s("/the/next/path") == 0.0


def test_a_reader_without_a_processor_does_not_hang_at_a_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang_at("/sys/stuck", monkeypatch)  # all that can be seen of it: runnable, and no processor time
    monkeypatch.setattr(processes, "read", lambda _: process_in("R"))
    monkeypatch.setattr(supervision, "processor_s", lambda _: 0.0)
    monkeypatch.setattr(reading, "FILE_DEADLINE_S", 0.1)
    monkeypatch.setattr(reading, "DEADLINE_S", 0.5)
    hung: dict[str, str] = {}
    parts = {"first": last, "second": plain}
    read = read_hardware(str(root), parts, hung=hung)
    assert {"second"} <= set(read["errors"]) <= {"first", "second"}
    assert hung == {}


def test_a_folder_that_hangs_is_left_alone_the_next_time(root: Path) -> None:
    reader = SnapshotReader(root=str(root), skip={"/sys": "ETIMEDOUT"})
    assert not reader.is_folder("/sys")
    assert reader.errors == {"/sys": "ETIMEDOUT"}


def test_a_part_that_dies_does_not_take_the_others_along(root: Path) -> None:
    def dies(_: SnapshotReader) -> None:
        os._exit(7)

    read = read_hardware(str(root), {"a": last, "dies": dies, "b": plain})
    assert read["errors"] == {"dies": "ECHILD"}
    assert set(read["files"]) == {"/sys/last", "/sys/before", "/sys/stuck", "/sys/after"}


def descriptors() -> set[str]:
    """Open files of this process, without the one that lists them."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def ours() -> set[int]:
    """Children of this process, including those of other tests."""
    return {process.pid for process in supervision.everything() if process.parent == os.getpid()}


def test_no_child_and_no_descriptor_is_left(root: Path) -> None:
    before, children = descriptors(), ours()
    read_hardware(str(root), {"a": plain})
    assert descriptors() == before
    assert ours() <= children


def test_the_heartbeat_says_where_and_how_far() -> None:
    beat = ProgressPage()
    assert beat.now() == (0, "")
    beat.begin("/sys/\udcff")
    assert beat.now() == (1, "/sys/\udcff")
    beat.begin("x" * 5000)
    assert beat.now() == (2, "x" * 1000)
