"""`stack check --arch`: wheels, bundles and environments; what is not there or can't be read is unknown."""

from __future__ import annotations

import gzip
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from orchestrator.cli.main import main
from orchestrator.protocol.errors import InputError
from orchestrator.tuning.gpu_code import Holds
from orchestrator.tuning.steps.gpu_code import check_code

RECORDED = Path(__file__).parents[3] / "recorded" / "gpu-code"
LOCK = "kernels==1.0 \\\n    --hash=sha256:00\nPlain_Python==2.0\nabsent==1\nmoved==3.0\n"


def library(name: str) -> bytes:
    """One of those that nvcc made."""
    return gzip.decompress((RECORDED / f"{name}.so.gz").read_bytes())


def wheel(folder: Path, name: str, **files: bytes) -> Path:
    """A wheel with these libraries."""
    path = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("there/__init__.py", "")
        for file, content in files.items():
            archive.writestr(f"there/{file}.so", content)
    return path


@pytest.fixture
def stack(tmp_path: Path) -> str:
    """A stack with a lock of its own."""
    lines = (Path(__file__).parents[4] / "inventory" / "stacks" / "sglang-0.5.23.yml").read_text("utf-8")
    (tmp_path / "mine.yml").write_text(lines, "utf-8")
    (tmp_path / "mine.lock").write_text(LOCK, "utf-8")
    return str(tmp_path / "mine.yml")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder that lacks a package and has one of another version."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "kernels-1.0", own=library("own"), hopper=library("hopper"), broken=b"\x7fELF", plain=library("none"))
    wheel(folder, "plain_python-2.0")
    wheel(folder, "moved-2.9", own=library("own"))
    return folder


def found_in(stack: str, place: Path) -> dict[str, str]:
    """What is held, by package and library."""
    found = check_code(stack, place, 89, lambda *_: None)
    return {library.library or library.package: library.holds.value for library in found}


WANTED = {
    "there/own.so": "own",
    "there/hopper.so": "none",
    "there/broken.so": "unknown",
    "there/plain.so": "no-gpu-code",
    "absent": "unknown",
    "moved": "unknown",
}


def test_every_library_of_the_lock_is_told_the_gravest_first(stack: str, wheels: Path) -> None:
    assert found_in(stack, wheels) == WANTED
    first, *_, last = check_code(stack, wheels, 89, lambda *_: None)
    assert first.holds is Holds.UNKNOWN and last.holds is Holds.NO_CODE


def test_a_bundle_has_the_same(stack: str, wheels: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "gpu.bundle"
    with tarfile.open(bundle, "w") as tar:
        for path in wheels.iterdir():
            tar.add(path, f"wheels/{path.name}")
    assert found_in(stack, bundle) == WANTED


def test_an_environment_has_the_same(stack: str, wheels: Path, tmp_path: Path) -> None:
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for path in wheels.iterdir():
        name = path.name.removesuffix("-py3-none-any.whl")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(site)
            record = "".join(f"{member},sha256=x,1\n" for member in archive.namelist())
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info" / "RECORD").write_text(f"{record}../../../../outside.so,,\n")
    (tmp_path / "outside.so").write_bytes(b"not this package's")
    assert found_in(stack, tmp_path / "venv") == WANTED


def test_what_our_reader_does_not_know_cuobjdump_may(
    stack: str, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cuobjdump").write_text("#!/bin/sh\necho 'ELF file    1: x.1.sm_86.cubin'\n")
    (tools / "cuobjdump").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    assert found_in(stack, wheels) == WANTED | {"there/broken.so": "older"}


def test_a_damaged_wheel_is_unknown(stack: str, wheels: Path) -> None:
    (wheels / "kernels-1.0-py3-none-any.whl").write_bytes(b"no zip")
    assert found_in(stack, wheels)["kernels"] == "unknown"


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_a_place_without_packages_is_refused(place: str, stack: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no package is there"):
        check_code(stack, tmp_path / place, 89, lambda *_: None)


def test_the_verb_says_it_and_exits_3_where_one_is_unknown(
    stack: str, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stack", "check", "--arch", "8.9", "--stack", stack, "--from", str(wheels)]
    assert main(words) == 3
    shown = capsys.readouterr().out
    assert "kernels 1.0 there/hopper.so: nothing that runs for sm_89 in 0 of 1 fat binaries (sm_90a)" in shown
    assert "moved 3.0: unknown: 2.9 is there instead" in shown and "1 library without GPU code" in shown
    assert main([*words, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["arch"], len(document["libraries"])) == ("sm_89", len(WANTED))


@pytest.mark.parametrize(
    "words",
    [[], ["--arch", "sm_89"], ["--arch", "ada", "--stack", "x", "--from", "."], ["--model", "M", "--from", "."]],
)
def test_halves_of_an_order_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stack", "check", *words]) == 2
    assert "fix" in capsys.readouterr().err
