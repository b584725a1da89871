"""Wheels brought by the real pip from a folder, and its refusals in words."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest
from tests.support.wheels import PACKAGES, small_stack

from orchestrator.hosts.steps import parts
from orchestrator.protocol.errors import InputError, Unreachable, VerificationDiffers

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


def bring(lock: str, folder: Path, find_links: object = "", *, python: str = OURS, deadline_s: float = 60) -> list[str]:
    """Bring a lock's wheels; what was told on the way."""
    told: list[str] = []
    places = {"python": python, "find_links": str(find_links)}
    parts.download_wheels(lock, folder, **places, deadline_s=deadline_s, progress=told.append)
    return told


@pytest.mark.parametrize("python", [OURS, "3.99"], ids=["our Python", "another"])
def test_every_package_of_the_lock_is_brought(tmp_path: Path, python: str) -> None:
    stack = small_stack(tmp_path / "stack", python)
    (tmp_path / "here").mkdir()
    wheels = stack.parent / "wheels"
    told = bring(stack.with_suffix(".lock").read_text(), tmp_path / "here", wheels, python=python)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(
        path.name for path in wheels.iterdir()
    ), "and the requirements, which may hold a password, are gone"
    assert len(told) == len(PACKAGES)


def test_a_package_that_nobody_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"l40s-nobody-has-this==1\.0") as caught:
        bring("l40s-nobody-has-this==1.0\n", tmp_path)
    assert "--find-links" in caught.value.fix


def test_a_deadline_ends_pip(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="within 0 s"):
        bring("one==1.0\n", tmp_path, deadline_s=0.05)
    assert not list(tmp_path.iterdir())


APT = """#!/bin/sh
printf '%s\\n' "$*" >>"$APT_LOG"
for word; do case $word in
Dir::Cache::archives=*) place=${word#*=} ;;
install) : >"$place/a_1%3a2_all.deb" ;;
nowhere) echo 'E: Unable to locate package nowhere' >&2; exit 100 ;;
esac; done
"""
DPKG_DEB = """#!/bin/sh
printf 'Package: a\\nVersion: 1:2\\nArchitecture: all\\n'
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("APT_LOG", str(tmp_path / "log"))
    (tmp_path / "debs").mkdir()
    return tmp_path / "log"


def test_packages_come_with_an_index_and_nothing_of_this_machine_s_state_is_asked(log: Path, tmp_path: Path) -> None:
    parts.download_debs(["a"], tmp_path / "debs", deadline_s=20)
    update, install = log.read_text().splitlines()
    assert update.endswith("update") and install.endswith("--download-only install a")
    assert all("Dir::State::status=/dev/null" in line for line in (update, install))
    assert sorted(file.name for file in (tmp_path / "debs").iterdir()) == ["Packages", "a_1.2_all.deb"]
    assert (tmp_path / "debs/Packages").read_text() == (
        "Package: a\nVersion: 1:2\nArchitecture: all\nFilename: ./a_1.2_all.deb\nSize: 0\n"
        "SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n\n"
    )


def test_apt_s_own_words_are_passed_on_and_nothing_is_left(log: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Unable to locate package nowhere"):
        parts.download_debs(["nowhere"], tmp_path / "debs", deadline_s=20)
    assert log.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "debs", "log"]


def test_the_role_and_the_bundle_name_the_same_packages() -> None:
    assert {"gcc", "numactl", "libibverbs1"} <= set(parts.base_packages())
    assert parts.python_packages("3.11") == ("python3.11", "python3.11-dev", "python3.11-venv")


@pytest.mark.parametrize("content", [b"IQ== 0\n", b"another", None], ids=["right", "another", "none"])
def test_a_folder_s_files_are_taken_when_they_are_the_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    wanted = hashlib.sha256(b"IQ== 0\n").hexdigest()
    monkeypatch.setattr(parts, "VOCABULARIES", {"a.tiktoken": wanted})
    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    folder.mkdir()
    (source / "unknown").touch()
    if content is not None:
        (source / "a.tiktoken").write_bytes(content)
    if content == b"IQ== 0\n":
        parts.bring_vocabularies(folder, source=str(source), deadline_s=1)
        assert [file.name for file in folder.iterdir()] == ["a.tiktoken"]
        return
    with pytest.raises(VerificationDiffers if content else InputError) as caught:
        parts.bring_vocabularies(folder, source=str(source), deadline_s=1)
    assert caught.value.where == str(source / "a.tiktoken") and (wanted in caught.value.what) == bool(content)
    assert not list(folder.iterdir())
