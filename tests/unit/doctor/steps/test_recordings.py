"""Snapshots on disk: written completely, read back, foreign archives read in memory, invalid files refused."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from tests.support.machine_files import MachineFiles, reference_machine

from orchestrator.doctor.steps.recordings import load_saved, save_snapshots
from orchestrator.model.snapshot import Snapshot, snapshot_json
from orchestrator.protocol.errors import InputError
from orchestrator.topology.build import build


def snapshots(count: int = 2) -> dict[str, Snapshot]:
    return {f"node{number}": reference_machine(f"node{number}", number).snapshot() for number in range(count)}


def pack(machine: MachineFiles, path: Path, *, top: str = "recorded", extra: tuple[tarfile.TarInfo, ...] = ()) -> Path:
    with tarfile.open(path, "w:bz2") as archive:
        for place, text in machine.files.items():
            member = tarfile.TarInfo(f"{top}{place}")
            data = bytes.fromhex(text) if place.endswith("/config") else text.encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for place, target in machine.links.items():
            member = tarfile.TarInfo(f"{top}{place}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for member in extra:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    saved = snapshots(12)
    paths = save_snapshots(saved, tmp_path / "seen")
    assert [path.name for path in paths] == [f"node{number}.json" for number in range(12)]
    assert load_saved(tmp_path / "seen") == saved
    assert list(load_saved(tmp_path / "seen")) == list(saved)  # node2 before node10
    assert load_saved(paths[3]) == {"node3": saved["node3"]}
    packed = paths[3].with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(paths[3].read_bytes()))
    assert load_saved(packed) == {"node3": saved["node3"]}
    paths[3].unlink()
    assert load_saved(tmp_path / "seen") == saved
    assert not [path for path in (tmp_path / "seen").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["../../escape", "a/b", "..", ".", "", "x\ny", "ä"])
def test_a_node_s_name_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    (path,) = save_snapshots({name: Snapshot(node=name, taken_at=0.0, files={})}, tmp_path / "seen")
    assert path.parent == tmp_path / "seen" and path.resolve().parent == (tmp_path / "seen").resolve()
    assert path.is_file()
    if not path.name.startswith("."):
        assert load_saved(tmp_path / "seen").keys() == {name}


def test_an_older_snapshot_is_replaced_whole(tmp_path: Path) -> None:
    save_snapshots(snapshots(1), tmp_path)
    save_snapshots({"node0": Snapshot(node="node0", taken_at=9.0, files={})}, tmp_path)
    assert load_saved(tmp_path)["node0"].taken_at == 9.0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        save_snapshots(snapshots(1), tmp_path / "file" / "seen")


def test_a_tarball_means_the_machine_that_was_packed(tmp_path: Path) -> None:
    machine = reference_machine()
    gpu = next(path.rpartition("/")[0] for path, text in machine.files.items() if text == "0x26b9\n")
    machine.files[f"{gpu}/config"] = "de10b926"
    (snapshot,) = load_saved(pack(machine, tmp_path / "big-iron.tar.bz2")).values()
    assert snapshot.node == "big-iron"
    assert snapshot.files[f"{gpu}/config"] == "de10b926"
    assert build(snapshot).pci == build(machine.snapshot()).pci
    assert build(snapshot).switches == build(machine.snapshot()).switches


def test_a_directory_and_a_copy_of_sys(tmp_path: Path) -> None:
    machine = reference_machine()
    machine.put_below(tmp_path / "box")
    whole, bare = load_saved(tmp_path / "box"), load_saved(tmp_path / "box" / "sys")
    assert list(whole) == ["box"] and list(bare) == ["sys"]
    assert build(whole["box"]).pci == build(bare["sys"]).pci == build(machine.snapshot()).pci
    assert build(whole["box"]).cpu.family == 6 and build(bare["sys"]).cpu.family == 0


def test_a_member_that_climbs_out_is_passed_over(tmp_path: Path) -> None:
    evil = tarfile.TarInfo("recorded/sys/../../../../tmp/evil")
    evil.size = 1
    device = tarfile.TarInfo("recorded/sys/device")
    device.type = tarfile.CHRTYPE
    path = pack(reference_machine(), tmp_path / "evil.tar.bz2", extra=(evil, device))
    (snapshot,) = load_saved(path).values()
    assert not [place for place in snapshot.files if "evil" in place or ".." in place]
    assert "/sys/device" not in snapshot.files


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.json", b"no json", "is not a snapshot"),
        ("list.json", b"[]", "found no JSON object"),
        ("other.json", b'{"format": 7}', "found format 7, wanted 1"),
        ("deep.json", b"[" * 100_000, "is not a snapshot"),
        ("none.json.gz", b"no gzip", "can't be read: Not a gzipped file"),
        ("half.json.gz", gzip.compress(b"[" * 100, mtime=0)[:-9], "can't be read"),
        ("half.tar.bz2", b"BZh9" + bytes(40), "can't be read as a tarball"),
        ("no.tar.gz", b"hello", "can't be read as a tarball"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as refused:
        load_saved(path)
    assert refused.value.where == str(path) and refused.value.fix


def test_a_tarball_without_a_machine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no /sys"):
        load_saved(pack(MachineFiles(), tmp_path / "empty.tar.bz2"))


def test_folders_that_hold_nothing_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_saved(tmp_path / "absent")
    with pytest.raises(InputError, match="contains no snapshot"):
        load_saved(tmp_path)


def test_one_node_twice_is_refused(tmp_path: Path) -> None:
    document = json.dumps(snapshot_json(snapshots(1)["node0"]))
    (tmp_path / "a.json").write_text(document)
    (tmp_path / "b.json").write_text(document)
    with pytest.raises(InputError, match="'node0' appears twice"):
        load_saved(tmp_path)
