"""What carries an engine to a GPU machine: other GPUs' machine code blanked, archives in pieces."""

from __future__ import annotations

import importlib.util
import mmap
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.tuning import gpu_code

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MACHINE_CODE, PTX = 2, 1


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KIT, INSTALL = script("gpu_kit"), script("gpu_install")


def code(kind: int, sm: int, content: bytes) -> bytes:
    """One entry of a fatbin, with the longer head that nvcc writes."""
    head = gpu_code._ENTRY.pack(kind, 0, 64, len(content), 0, 0, sm, 0, 0)
    return bytes(head.ljust(64, b"\1") + content)


def test_machine_code_for_other_gpus_becomes_zeros_and_nothing_else_changes() -> None:
    codes = [(MACHINE_CODE, 80, b"a" * 24), (MACHINE_CODE, 90, b"b" * 32), (PTX, 90, b"c" * 16)]
    body = b"".join(code(*one) for one in codes)
    fatbin = gpu_code._MARK + len(body).to_bytes(8, "little") + body
    section = fatbin + bytes(8) + fatbin
    with mmap.mmap(-1, len(section)) as data:
        data[:] = section
        KIT._blank(data, 0, len(section))
        assert data[:] == section.replace(b"a" * 24, bytes(24)).replace(b"c" * 16, bytes(16))


def test_a_section_of_another_format_is_left_as_it_is() -> None:
    body = code(MACHINE_CODE, 80, b"a" * 24)
    section = gpu_code._MARK + (len(body) + 8).to_bytes(8, "little") + body
    with mmap.mmap(-1, len(section)) as data:
        data[:] = section
        KIT._blank(data, 0, len(section))
        assert data[:] == section


def test_pieces_of_several_loads_are_one_archive_once_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KIT, "PIECE", 4)
    monkeypatch.setattr(INSTALL, "HOME", tmp_path / "home")
    archive = tmp_path / "engine.tar.xz"
    archive.write_bytes(b"0123456789")
    KIT.cut(archive)
    pieces = sorted(tmp_path.glob("engine.tar.xz.*"))
    assert [piece.name for piece in pieces] == [f"engine.tar.xz.{number}of3" for number in (1, 2, 3)]
    for number, piece in enumerate(pieces):
        load = tmp_path / f"load{number}"
        load.mkdir()
        piece.rename(load / piece.name)
        assert bool(INSTALL.received(load)) == (number == 2)
    assert INSTALL.joined("engine", INSTALL.received(tmp_path)["engine"]).read_bytes() == b"0123456789"
