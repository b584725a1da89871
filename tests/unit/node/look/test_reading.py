"""The reader: links resolved inside the root, failures kept with their names, nothing outside ever touched; and a file
that never answers takes its time limit, and the rest is complete."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.waiting import slack

from orchestrator.model.snapshot import Snapshot
from orchestrator.node import processes, supervision
from orchestrator.node.look import reading
from orchestrator.node.look.reading import LARGEST_TEXT, ProgressPage, SnapshotReader, StallTimer, read_hardware


@pytest.fixture
def root(tmp_path: Path) -> Path:
    device = tmp_path / "sys/devices/pci0000:00/0000:00:01.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "config").write_bytes(bytes(range(1, 65)))
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:00:01.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    return tmp_path


def test_a_file_is_kept_at_its_real_path_and_found_by_its_class_path(root: Path) -> None:
    reader = SnapshotReader(root=str(root))
    assert reader.text("/sys/bus/pci/devices/0000:00:01.0/vendor") == "0x10de\n"
    assert reader.files == {"/sys/devices/pci0000:00/0000:00:01.0/vendor": "0x10de\n"}
    snapshot = Snapshot(node="n", taken_at=0.0, files=reader.files, links=reader.links)
    assert snapshot.text("/sys/bus/pci/devices/0000:00:01.0/vendor") == "0x10de"


def test_a_link_is_kept_as_read(root: Path) -> None:
    reader = SnapshotReader(root=str(root))
    assert reader.link("/sys/bus/pci/devices/0000:00:01.0") == "/sys/devices/pci0000:00/0000:00:01.0"
    assert reader.links == {"/sys/bus/pci/devices/0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0"}
    assert reader.link("/sys/bus/pci") == "" and reader.link("/sys/absent") == ""


def test_links_never_lead_out_of_the_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_text("secret")
    (root / "sys/absolute").symlink_to(outside)
    (root / "sys/climbing").symlink_to("../" * 40 + str(outside).lstrip("/"))
    reader = SnapshotReader(root=str(root))
    assert reader.text("/sys/absolute") is None
    assert reader.text("/sys/climbing") is None


def test_a_loop_of_links_ends(root: Path) -> None:
    (root / "sys/one").symlink_to("two")
    (root / "sys/two").symlink_to("one")
    reader = SnapshotReader(root=str(root))
    assert reader.text("/sys/one/vendor") is None
    assert reader.names("/sys/one") == []


def test_a_missing_file_leaves_no_trace_and_nothing_blocks(root: Path) -> None:
    (root / "sys/folder").mkdir()
    os.mkfifo(root / "sys/socket")
    reader = SnapshotReader(root=str(root))
    assert reader.text("/sys/absent") is None and reader.text("/sys/folder") is None
    assert reader.errors == {}
    assert reader.text("/sys/socket") == ""  # a pipe without a writer does not block


def test_a_read_that_the_kernel_refuses_is_told_with_its_errno() -> None:
    reader = SnapshotReader()
    assert reader.text("/proc/self/mem") is None
    assert reader.errors == {f"/proc/{os.getpid()}/mem": "EIO"}


def test_bytes_that_are_no_text_survive(root: Path) -> None:
    (root / "sys/odd").write_bytes(b"\xff\x00ok\n")
    reader = SnapshotReader(root=str(root))
    text = reader.text("/sys/odd")
    assert text is not None and text.encode("utf-8", "surrogateescape") == b"\xff\x00ok\n"


def test_no_file_is_kept_beyond_its_measure(root: Path) -> None:
    (root / "sys/long").write_text("x" * (LARGEST_TEXT + 10))
    text = SnapshotReader(root=str(root)).text("/sys/long")
    assert text is not None and len(text) == LARGEST_TEXT


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (bytes(range(1, 65)), 64),  # what users other than root get
        (b"\x01" * 300 + bytes(4096 - 300), 512),
        (b"\x01" * 1000 + bytes(4096 - 1000), 1000),
        (b"\x01" * 4096, 4096),
        (b"", 0),
    ],
)
def test_a_configuration_space_loses_nothing_but_zeros_at_its_end(root: Path, data: bytes, kept: int) -> None:
    place = "/sys/devices/pci0000:00/0000:00:01.0/config"
    (root / place.lstrip("/")).write_bytes(data)
    reader = SnapshotReader(root=str(root))
    reader.config_space(place, enough=512)
    assert bytes.fromhex(reader.files[place]) == data[:kept]


def test_a_copy_of_sys_alone(root: Path) -> None:
    reader = SnapshotReader(root=str(root / "sys"), mount="/sys")
    assert reader.text("/sys/bus/pci/devices/0000:00:01.0/vendor") == "0x10de\n"
    assert reader.text("/proc/cpuinfo") is None and reader.names("/proc") == []
    assert reader.names("/sys") == ["bus", "devices"]


def test_what_is_skipped_is_not_touched(root: Path) -> None:
    touched: list[str] = []
    place = "/sys/devices/pci0000:00/0000:00:01.0/vendor"
    reader = SnapshotReader(root=str(root), begin=touched.append, skip={place: "ETIMEDOUT", "/sys/bus": "EIO"})
    assert reader.text(place) is None and not reader.is_folder("/sys/bus")
    assert reader.errors == {place: "ETIMEDOUT", "/sys/bus": "EIO"} and not {place, "/sys/bus"} & {*touched}


def test_a_tree_is_read_to_a_depth(root: Path) -> None:
    (root / "sys/deep/er").mkdir(parents=True)
    (root / "sys/deep/file").write_text("1")
    (root / "sys/deep/er/file").write_text("2")
    (root / "sys/deep/link").symlink_to("er")
    reader = SnapshotReader(root=str(root))
    reader.below("/sys/deep", 1)
    assert set(reader.files) == {"/sys/deep/file"} and set(reader.links) == {"/sys/deep/link"}
    reader.below("/sys/deep", 2)
    assert set(reader.files) == {"/sys/deep/file", "/sys/deep/er/file"}


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
def four(tmp_path: Path) -> Path:
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


def test_a_file_that_hangs_is_named_and_the_rest_is_read(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang_at("/sys/stuck", monkeypatch)
    monkeypatch.setattr(reading, "FILE_DEADLINE_S", 0.2)
    started = time.monotonic()
    read = read_hardware(str(four), {"a": plain, "b": last})
    assert read["errors"] == {"/sys/stuck": "ETIMEDOUT"}
    assert read["files"] == {"/sys/before": "before", "/sys/after": "after", "/sys/last": "last"}
    assert time.monotonic() - started < 5 * slack()


def test_the_whole_has_a_deadline(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang_at("/sys/stuck", monkeypatch)
    monkeypatch.setattr(reading, "DEADLINE_S", 1.0)
    started = time.monotonic()
    parts = {"first": last, "second": plain}
    read = read_hardware(str(four), parts)
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


def test_a_reader_without_a_processor_does_not_hang_at_a_path(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang_at("/sys/stuck", monkeypatch)  # all that can be seen of it: runnable, and no processor time
    monkeypatch.setattr(processes, "read", lambda _: process_in("R"))
    monkeypatch.setattr(supervision, "processor_s", lambda _: 0.0)
    monkeypatch.setattr(reading, "FILE_DEADLINE_S", 0.1)
    monkeypatch.setattr(reading, "DEADLINE_S", 0.5)
    hung: dict[str, str] = {}
    parts = {"first": last, "second": plain}
    read = read_hardware(str(four), parts, hung=hung)
    assert {"second"} <= set(read["errors"]) <= {"first", "second"}
    assert hung == {}


def test_a_part_that_dies_does_not_take_the_others_along(four: Path) -> None:
    def dies(_: SnapshotReader) -> None:
        os._exit(7)

    read = read_hardware(str(four), {"a": last, "dies": dies, "b": plain})
    assert read["errors"] == {"dies": "ECHILD"}
    assert set(read["files"]) == {"/sys/last", "/sys/before", "/sys/stuck", "/sys/after"}


def descriptors() -> set[str]:
    """Open files of this process, without the one that lists them."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def ours() -> set[int]:
    """Children of this process, including those of other tests."""
    return {process.pid for process in supervision.everything() if process.parent == os.getpid()}


def test_no_child_and_no_descriptor_is_left(four: Path) -> None:
    before, children = descriptors(), ours()
    read_hardware(str(four), {"a": plain})
    assert descriptors() == before
    assert ours() <= children


def test_the_heartbeat_says_where_and_how_far() -> None:
    beat = ProgressPage()
    assert beat.now() == (0, "")
    beat.begin("/sys/\udcff")
    assert beat.now() == (1, "/sys/\udcff")
    beat.begin("x" * 5000)
    assert beat.now() == (2, "x" * 1000)
