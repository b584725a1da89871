"""A gang's secrets on a node: of mode 0600, replaced atomically, kept for a restart of the same plan."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.messages import message

from orchestrator.node.agent.secret_files import keep, kept
from orchestrator.node.failure import Failure
from orchestrator.protocol.run_files import KeptSecrets
from orchestrator.protocol.staging import SecretFile, Secrets

ASKED = message(
    Secrets,
    {
        "files": [{"name": "engine-secrets.yml", "text": 'api-key: "k"\n'}, {"name": "b.args", "text": "x"}],
        "redact": ["key-key-key"],
        "authorization": "Bearer key-key-key",
    },
)
KEPT = KeptSecrets(redact=ASKED.redact, authorization=ASKED.authorization, files=("b.args", "engine-secrets.yml"))


def test_what_is_kept_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    keep(str(tmp_path), ASKED, None)
    assert kept(str(tmp_path)) == KEPT
    assert (tmp_path / "engine-secrets.yml").read_text() == 'api-key: "k"\n'
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "engine-secrets.yml": 0o600, "b.args": 0o600, "secrets.json": 0o600,
    }  # fmt: skip


def test_the_engines_files_belong_to_whom_it_runs_as(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    keep(str(tmp_path), ASKED, (65534, 65534))
    assert (tmp_path / "engine-secrets.yml").stat().st_uid == 65534
    assert (tmp_path / "secrets.json").stat().st_uid == 0


def test_an_empty_request_removes_them(tmp_path: Path) -> None:
    keep(str(tmp_path), ASKED, None)
    assert kept(str(tmp_path)).authorization
    keep(str(tmp_path), Secrets(redact=("other-secret",), files=ASKED.files[:1]), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["engine-secrets.yml", "secrets.json"]
    assert kept(str(tmp_path)) == KeptSecrets(redact=("other-secret",), files=("engine-secrets.yml",))
    keep(str(tmp_path), Secrets(), None)
    assert list(tmp_path.iterdir()) == []
    assert kept(str(tmp_path)) == KeptSecrets()


def test_going_back_takes_back_what_a_later_plan_replaced(tmp_path: Path) -> None:
    folder = str(tmp_path)
    keep(folder, ASKED, None, before="")
    keep(folder, Secrets(authorization="Bearer new"), None, before="run1")
    assert (tmp_path / "secrets.before.json").stat().st_mode & 0o777 == 0o600
    keep(folder, Secrets(of_run="run0"), None, before="run2")
    assert kept(folder).authorization == "Bearer new"  # the replaced one belongs to another run
    keep(folder, Secrets(of_run="run1"), None, before="run2")
    assert kept(folder) == KEPT
    assert (tmp_path / "engine-secrets.yml").read_text() == 'api-key: "k"\n'
    assert not (tmp_path / "secrets.before.json").exists()


def test_going_back_to_a_plan_without_secrets(tmp_path: Path) -> None:
    folder = str(tmp_path)
    keep(folder, Secrets(), None, before="run0")
    assert list(tmp_path.iterdir()) == []  # nothing was replaced
    keep(folder, ASKED, None, before="run1")
    keep(folder, Secrets(of_run="run1"), None, before="run2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden"])
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(Failure):
        keep(str(tmp_path / "gang"), Secrets(files=(SecretFile(name=name, text="x"),)), None)
    assert list(tmp_path.iterdir()) == []
