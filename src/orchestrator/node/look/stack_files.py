"""Which files of a virtual environment show what is installed, for the probe: read, never executed or imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.node.look.hardware import HardwarePart
from orchestrator.node.look.reading import SnapshotReader
from orchestrator.protocol.looks import StackQuestion

ENGINE = "sglang/__init__.py"
"""Lies below the engine's root, wherever that is."""

_BEGINNING = 200


def part(asked: StackQuestion) -> HardwarePart:
    """What a look reads of one environment."""
    return HardwarePart("installed stack", lambda reader: _read(reader, asked))


def _read(reader: SnapshotReader, asked: StackQuestion) -> None:
    venv = asked.venv
    reader.link(f"{venv}/bin/python3")
    reader.text(f"{venv}/pyvenv.cfg")
    for site in [
        f"{venv}/lib/{name}/site-packages" for name in reader.names(f"{venv}/lib") if name.startswith("python3")
    ]:
        names = reader.names(site)
        for name in names:
            if name.endswith(".dist-info") and _package(name) in asked.packages:
                reader.texts(f"{site}/{name}", ("WHEEL",))
        for root in (site, *_named_by_pth(reader, site, names)):
            if reader.text(f"{root}/{ENGINE}") is not None:
                _engine(reader, root, asked)
                return


def _package(dist_info: str) -> str:
    """The normalised name (PyPA) out of `sglang_kernel-0.4.10.dist-info`."""
    return re.sub(r"[-_.]+", "-", dist_info.partition("-")[0]).lower()


def _named_by_pth(reader: SnapshotReader, site: str, names: list[str]) -> Iterator[str]:
    """Folders of source installs."""
    for name in names:
        if name.endswith(".pth") and name != "distutils-precedence.pth":
            text = reader.text(f"{site}/{name}") or ""
            yield from (line.strip() for line in text.splitlines() if line.startswith("/"))


def _engine(reader: SnapshotReader, root: str, asked: StackQuestion) -> None:
    for file, text in asked.evidence.items():
        if file.endswith(".so"):
            reader.search(f"{root}/{file}", text)
        else:
            _lines(reader, f"{root}/{file}", text)
    tuned = asked.tuned
    moe, device = tuned.moe, tuned.device
    if not device or not tuned.linear:
        return
    _configs(reader, f"{root}/{tuned.linear}", device)
    moe = moe if moe.startswith("/") else f"{root}/{moe}"
    if not tuned.by_triton:
        _configs(reader, moe, device)
        return
    for name in reader.names(moe):
        if name.startswith("triton_"):
            _configs(reader, f"{moe}/{name}", device)


def _lines(reader: SnapshotReader, path: str, wanted: str) -> None:
    """Of a source file only the lines with a text, or its beginning where none has it."""
    whole = reader.text(path)
    if whole is not None:
        found = [line for line in whole.splitlines() if wanted in line]
        reader.files[reader.real(path)] = "\n".join(found) if found else whole[:_BEGINNING]


def _configs(reader: SnapshotReader, folder: str, device: str) -> None:
    named = re.compile(rf"[EN]=\d+,[NK]=\d+,device_name={re.escape(device)}(,.*|_down)?\.json")
    reader.texts(folder, (name for name in reader.names(folder) if named.fullmatch(name)))
