"""The reader: links resolved inside the root, failures kept with their names, nothing outside ever touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.model.snapshot import Snapshot
from orchestrator.node.look.reading import LARGEST_TEXT, SnapshotReader


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
    assert snapshot.read("/sys/bus/pci/devices/0000:00:01.0/vendor") == "0x10de"


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
    reader = SnapshotReader(root=str(root), begin=touched.append, skip={place: "ETIMEDOUT"})
    assert reader.text(place) is None
    assert reader.errors == {place: "ETIMEDOUT"} and place not in touched


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
