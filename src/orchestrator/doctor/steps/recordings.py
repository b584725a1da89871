"""Snapshots on disk: saved ones, and machines that others recorded (a tarball of /sys and /proc, a sysfs directory)."""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from orchestrator.doctor.netplan import NodeFiles
from orchestrator.model.errors import InputError
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot
from orchestrator.model.snapshot_json import snapshot_from_json, snapshot_json
from orchestrator.model.topology import Topology
from orchestrator.node.look.hardware import PARTS
from orchestrator.node.look.reading import LARGEST_TEXT, SnapshotReader
from orchestrator.records.documents import cant_be_written, write_whole
from orchestrator.topology.nccl_xml import nccl_xml

SUFFIX = ".json"
PACKED = (SUFFIX, f"{SUFFIX}.gz")
TARBALLS = (".tar.bz2", ".tar.gz", ".tar.xz", ".tar", ".tgz", ".tbz2", ".txz")
_LARGEST_SNAPSHOT = 64 << 20
_MOST_MEMBERS = 200_000
_MOST_TEXT = 64 << 20
_SYSFS_FOLDERS = ("bus", "class", "devices")


def save_snapshots(snapshots: Mapping[str, Snapshot], folder: Path) -> tuple[Path, ...]:
    """One JSON file per node, each replaced atomically. Raises InputError where the folder can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(_save(snapshot, folder / f"{file_name(name)}{SUFFIX}") for name, snapshot in snapshots.items())
    except OSError as failure:
        raise cant_be_written(folder, failure, "choose another folder with --save") from None


def dump_xml(topologies: Mapping[str, Topology], folder: Path) -> tuple[Path, ...]:
    """One NCCL topology file a node. Raises InputError where the folder can't be written."""
    paths = []
    for name, topology in topologies.items():
        paths.append(folder / f"{file_name(name)}.xml")
        write_whole(paths[-1], nccl_xml(topology), folders=0o777, fix="choose another folder with --dump-xml")
    return tuple(paths)


def write_netplan(found: Iterable[NodeFiles], folder: Path) -> tuple[Path, ...]:
    """A folder of files a node. Raises InputError where they can't be written."""
    paths = []
    for node in found:
        for path, text in node.wanted.items():
            paths.append(folder / file_name(node.node) / path)
            write_whole(paths[-1], text, folders=0o777, fix="choose another folder with --netplan")
            paths[-1].chmod(0o600)
    return tuple(paths)


def load_saved(path: Path) -> dict[str, Snapshot]:
    """Snapshots by node, from a folder of saved ones, one saved file, a tarball that hwloc-gather-topology made,
    or a directory that holds `sys` (and `proc`), or is a copy of /sys.

    Raises InputError where there is nothing of the kind.
    """
    if path.is_dir() and not is_recorded(path):
        return _saved_folder(path)
    if not path.exists():
        raise InputError(
            "does not exist", where=str(path), fix="specify a file or folder from `l40s-deploy discover --save`"
        )
    read = _recorded_directory if path.is_dir() else _tarball if path.name.endswith(TARBALLS) else _saved_file
    snapshot = read(path)
    return {snapshot.node: snapshot}


def _save(snapshot: Snapshot, path: Path) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_text(json.dumps(snapshot_json(snapshot), indent=1) + "\n", "ascii")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return path


def file_name(node: str) -> str:
    """A node's name as one that stays in its folder."""
    name = quote(node, safe="")
    return name if name.strip(".") else name.replace(".", "%2E") or "node"


def _saved_folder(folder: Path) -> dict[str, Snapshot]:
    try:
        files = sorted(path for path in folder.iterdir() if path.name.endswith(PACKED) and path.name[0] != ".")
    except OSError as failure:
        raise InputError(f"can't be listed: {failure.strerror}", where=str(folder), fix="--from FOLDER") from None
    snapshots: dict[str, Snapshot] = {}
    for path in sorted(files, key=lambda path: _natural(path.stem)):
        snapshot = _saved_file(path)
        if snapshot.node in snapshots:
            raise InputError(f"node {snapshot.node!r} appears twice", where=str(path), fix="keep one file per node")
        snapshots[snapshot.node] = snapshot
    if not snapshots:
        raise InputError(
            "contains no snapshot (*.json), and no `sys` or `bus`, `class`, `devices`",
            where=str(folder),
            fix="specify a folder from `l40s-deploy discover --save`, or one with a recorded /sys",
        )
    return snapshots


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(digits or -1)) for text, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name)]


def _saved_file(path: Path) -> Snapshot:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            data = file.read(_LARGEST_SNAPSHOT + 1)
        if len(data) > _LARGEST_SNAPSHOT:
            raise ValueError(f"is larger than {_LARGEST_SNAPSHOT >> 20} MiB")  # noqa: TRY301 - told with the others
        snapshot = snapshot_from_json(json.loads(data))
    except (OSError, EOFError, zlib.error) as failure:
        words = getattr(failure, "strerror", None) or failure
        raise InputError(f"can't be read: {words}", where=str(path), fix="--from PATH") from None
    except (ValueError, RecursionError) as wrong:
        raise InputError(
            f"is not a snapshot: {wrong}", where=str(path), fix="specify a file from `l40s-deploy discover --save`"
        ) from None
    return snapshot


def is_recorded(folder: Path) -> bool:
    """Whether a folder is a copy of /sys, or holds one."""
    return (folder / "sys").is_dir() or any((folder / name).is_dir() for name in _SYSFS_FOLDERS)


def _recorded_directory(folder: Path) -> Snapshot:
    """A recorded machine below a folder, read by the production reader."""
    whole = (folder / "sys").is_dir()
    reader = SnapshotReader(root=str(folder)) if whole else SnapshotReader(root=str(folder), mount="/sys")
    for part in PARTS:
        part.read(reader)
    return _snapshot(folder.resolve().name or "machine", reader.files, reader.links, reader.errors)


def _snapshot(name: str, files: dict[str, str], links: dict[str, str], errors: dict[str, str]) -> Snapshot:
    """NVML has no data of a recorded machine: its absence is reported as an error, as by the probe."""
    return Snapshot(
        node=name,
        taken_at=0.0,
        files=files,
        links=links,
        errors=errors,
        nvml={"error": NOT_RECORDED},
        host={"hostname": name},
    )


def _tarball(path: Path) -> Snapshot:
    """Read in memory: nothing of a foreign archive is written to disk."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    size = 0
    try:
        with tarfile.open(path) as archive:
            for count, member in enumerate(archive):
                place = _machine_path(member.name)
                if count > _MOST_MEMBERS or size > _MOST_TEXT:
                    raise _unfit(path, "is larger than any recorded machine")
                if place is None:
                    continue
                if member.issym():
                    links[place] = member.linkname
                elif member.isreg() and member.size <= LARGEST_TEXT:
                    file = archive.extractfile(member)
                    data = file.read(LARGEST_TEXT) if file else b""
                    size += len(data)
                    files[place] = data.hex() if place.endswith("/config") else data.decode("utf-8", "surrogateescape")
    except (tarfile.TarError, EOFError, OSError, ValueError) as failure:
        raise _unfit(path, f"can't be read as a tarball: {failure}") from None
    if not any(place.startswith("/sys/") for place in files):
        raise _unfit(path, "contains no /sys")
    return _snapshot(_stem(path), files, links, {})


def _unfit(path: Path, words: str) -> InputError:
    return InputError(words, where=str(path), fix="specify a tarball from hwloc-gather-topology")


def _machine_path(name: str) -> str | None:
    """The path on the machine of a member: 'name/sys/bus/...' is '/sys/bus/...'."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        return None
    start = next((index for index, part in enumerate(parts[:2]) if part in ("sys", "proc", "etc")), None)
    return None if start is None else "/" + "/".join(parts[start:])


def _stem(path: Path) -> str:
    return next((path.name.removesuffix(ending) for ending in TARBALLS if path.name.endswith(ending)), path.stem)
