"""Whether an inventory's files have changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.loading import stamps
from orchestrator.loading.stamps import stamp_of


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    for folder in ("group_vars", "host_vars"):
        (tmp_path / folder).mkdir()
    (tmp_path / "group_vars/all").mkdir()
    (tmp_path / "group_vars/all/main.yml").write_text("l40s_lease: 30\n")
    (tmp_path / "hosts.yml").write_text("all: {}\n")
    return tmp_path / "hosts.yml"


def rewritten(hosts: Path) -> None:
    """The same content, by an editor that replaces the file."""
    new = hosts.with_suffix(".new")
    new.write_bytes(hosts.read_bytes())
    new.rename(hosts)


CHANGES: list[Callable[[Path], object]] = [
    lambda hosts: hosts.write_text("all: {vars: {}}\n"),
    rewritten,
    lambda hosts: hosts.unlink(),
    lambda hosts: hosts.chmod(0o600),
    lambda hosts: (hosts.parent / "host_vars/node0.yml").write_text("x: 1\n"),
    lambda hosts: (hosts.parent / "group_vars/all/more.yml").write_text("x: 1\n"),
    lambda hosts: (hosts.parent / "group_vars/all/main.yml").unlink(),
    lambda hosts: os.utime(hosts.parent / "group_vars/all/main.yml"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_written_or_goes_changes_it(hosts: Path, change: Callable[[Path], object]) -> None:
    before = stamp_of(hosts)
    assert stamp_of(str(hosts)) == before
    change(hosts)
    assert stamp_of(hosts) != before


def test_a_file_beside_it_that_nobody_reads_changes_nothing(hosts: Path) -> None:
    before = stamp_of(hosts)
    (hosts.parent / "notes.txt").write_text("x")
    assert stamp_of(hosts) == before


def test_a_link_counts_by_what_it_leads_to(hosts: Path) -> None:
    link, other = hosts.parent / "current.yml", hosts.parent / "other.yml"
    other.write_bytes(hosts.read_bytes())
    link.symlink_to(hosts)
    before = stamp_of(link)
    link.unlink()
    link.symlink_to(other)
    assert stamp_of(link) != before


def test_of_a_folder_all_files_count(hosts: Path) -> None:
    before = stamp_of(hosts.parent)
    (hosts.parent / "host_vars/node0.yml").write_text("x: 1\n")
    assert stamp_of(hosts.parent) != before


def test_folders_that_lead_into_themselves_end(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hosts.parent / "group_vars/all/again").symlink_to(hosts.parent / "group_vars")
    monkeypatch.setattr(stamps, "MOST", 7)
    assert len(stamp_of(hosts)) == 7
