"""Debian packages for a bundle: how apt-get is asked, and the index that a node's apt reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.hosts.steps import debian
from orchestrator.model.errors import InputError

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
    debian.download(["a"], tmp_path / "debs", deadline_s=20)
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
        debian.download(["nowhere"], tmp_path / "debs", deadline_s=20)
    assert log.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "debs", "log"]


def test_the_role_and_the_bundle_name_the_same_packages() -> None:
    assert {"gcc", "rsync", "libibverbs1"} <= set(debian.base_packages())
    assert debian.python_packages("3.11") == ("python3.11", "python3.11-dev", "python3.11-venv")
