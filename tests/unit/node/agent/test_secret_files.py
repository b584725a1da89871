"""A gang's secrets on a node: of mode 0600, replaced as a whole, kept for whoever starts the same again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.secret_files import Secrets, keep, kept
from orchestrator.node.failure import Failure

ASKED: dict[str, Any] = {
    "files": [{"name": "engine-secrets.yml", "text": 'api-key: "k"\n'}, {"name": "b.args", "text": "x"}],
    "redact": ["key-key-key"],
    "authorization": "Bearer key-key-key",
}


def test_what_is_kept_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    keep(str(tmp_path), {"secrets": ASKED}, None)
    assert kept(str(tmp_path)) == Secrets(("key-key-key",), "Bearer key-key-key")
    assert (tmp_path / "engine-secrets.yml").read_text() == 'api-key: "k"\n'
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "engine-secrets.yml": 0o600, "b.args": 0o600, "secrets.json": 0o600,
    }  # fmt: skip


def test_the_engines_files_belong_to_whom_it_runs_as(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    keep(str(tmp_path), {"secrets": ASKED}, (65534, 65534))
    assert (tmp_path / "engine-secrets.yml").stat().st_uid == 65534
    assert (tmp_path / "secrets.json").stat().st_uid == 0


def test_a_request_that_says_nothing_leaves_them_and_an_empty_one_removes_them(tmp_path: Path) -> None:
    keep(str(tmp_path), {"secrets": ASKED}, None)
    keep(str(tmp_path), {}, None)
    assert kept(str(tmp_path)).authorization
    keep(str(tmp_path), {"secrets": {"redact": ["other-secret"], "files": ASKED["files"][:1]}}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine-secrets.yml", "secrets.json"]
    assert kept(str(tmp_path)) == Secrets(("other-secret",), "")
    keep(str(tmp_path), {"secrets": {}}, None)
    assert list(tmp_path.iterdir()) == []
    assert kept(str(tmp_path)) == Secrets()


def test_going_back_takes_back_what_a_later_plan_replaced(tmp_path: Path) -> None:
    folder = str(tmp_path)
    keep(folder, {"secrets": ASKED}, None, before="")
    keep(folder, {"secrets": {"authorization": "Bearer new"}}, None, before="run1")
    assert (tmp_path / "secrets.before.json").stat().st_mode & 0o777 == 0o600
    keep(folder, {"secrets": {"of_run": "run0"}}, None, before="run2")
    assert kept(folder).authorization == "Bearer new"  # what was replaced is another run's
    keep(folder, {"secrets": {"of_run": "run1"}}, None, before="run2")
    assert kept(folder) == Secrets(("key-key-key",), "Bearer key-key-key")
    assert (tmp_path / "engine-secrets.yml").read_text() == 'api-key: "k"\n'
    assert not (tmp_path / "secrets.before.json").exists()


def test_going_back_to_a_plan_without_secrets(tmp_path: Path) -> None:
    folder = str(tmp_path)
    keep(folder, {"secrets": {}}, None, before="run0")
    assert list(tmp_path.iterdir()) == []  # nothing was replaced
    keep(folder, {"secrets": ASKED}, None, before="run1")
    keep(folder, {"secrets": {"of_run": "run1"}}, None, before="run2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden"])
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(Failure):
        keep(str(tmp_path / "gang"), {"secrets": {"files": [{"name": name, "text": "x"}]}}, None)
    assert list(tmp_path.iterdir()) == []
