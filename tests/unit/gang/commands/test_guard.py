"""The verb `guard`: how its unit and the audit log's command line show its hooks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli import main as cli
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands import guard as verb
from orchestrator.gang.commands.guard import GuardProgress
from orchestrator.gang.guarding import GuardAction, GuardDecision
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.guard.rereading import WRONG_LOOKS
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.errors import DeployError

INVENTORY = "all: {children: {gangs: {children: {gang0: {hosts: {node0: {ansible_host: 127.0.0.1}}}}}}}\n"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory; units go to a folder of the test's own."""
    monkeypatch.setattr("orchestrator.cli.units.unit_folder", lambda: tmp_path / "units")
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY)
    return path


def test_install_writes_a_unit_that_systemd_takes(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = hosts.with_name("hook")
    secret.write_text("https://hooks.example.org/s3cr3t\n")
    secret.chmod(0o600)
    words = ["--on-failed", f"@{secret}", "--on-ready", "/bin/true 100% $HOME", "--limit", "3"]
    assert cli.main(["guard", "-i", str(hosts), *words, "--install", "--json"]) == 0
    unit = Path(json.loads(capsys.readouterr().out)["unit"])
    text = unit.read_text()
    assert "s3cr3t" not in text and f'"--on-failed" "@{secret}"' in text and '"--limit" "3"' in text
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=30, check=False
        )
        assert unit.name not in done.stderr, done.stderr


def test_a_hook_that_others_may_read_is_refused(hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = hosts.with_name("hook")
    secret.write_text("https://hooks.example.org/s3cr3t\n")
    secret.chmod(0o644)
    assert cli.main(["guard", "-i", str(hosts), "--on-failed", f"@{secret}", "--once"]) == 2
    assert "chmod 600" in capsys.readouterr().err


def test_the_verb_reads_its_files_again_and_goes_by_none_that_is_wrong(
    hosts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares: list[str] = []
    wrong: list[DeployError] = []

    def guard(_: object, request: GuardRequest, __: object) -> tuple[()]:
        def looks(text: str) -> list[Inventory | DeployError]:
            hosts.write_text(text)
            return [read for _ in range(WRONG_LOOKS + 2) if (read := request.reread()) is not None]

        (read,) = looks(INVENTORY.replace("127.0.0.1}", "127.0.0.1}, s: {ansible_host: other, l40s_role: spare}"))
        assert isinstance(read, Inventory)
        spares.extend(node.name for node in read.gangs[0].spares)
        wrong.extend(failure for failure in looks("all: {") if isinstance(failure, DeployError))
        return ()

    monkeypatch.setattr(verb, "guard", guard)
    assert cli.main(["guard", "-i", str(hosts)]) == 0
    assert spares == ["s"] and [str(hosts) in failure.where for failure in wrong] == [True]


def test_what_was_typed_is_noted_without_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["l40s-deploy", "guard", "--on-failed", "https://h.example/s3cr3t"])
    assert command_line() == "l40s-deploy guard --on-failed https://h.example/..."


@pytest.mark.parametrize("do", GuardAction)
def test_a_decision_is_told_in_words(do: GuardAction, capsys: pytest.CaptureFixture[str]) -> None:
    GuardProgress(Screen()).decided("g", GuardDecision(do, "TP3 was killed", without=("node1",)))
    said = capsys.readouterr().err
    assert "TP3 was killed" in said and f"g: {do.value}: " not in said
