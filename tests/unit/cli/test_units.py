"""`--install`: the unit runs the typed command, without --install."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.cli import main as cli
from orchestrator.cli.main import parser_of

INVENTORY = "all: {children: {gangs: {children: {gang0: {hosts: {node0: {ansible_host: 127.0.0.1}}}}}}}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("exporter", "--listen", "10.0.0.5:9941", "gang0"),
        ("doctor", "--watch", "90s", "--accept", "LIMITS@node0", "--node", "node0"),
        ("guard", "--metrics", "9941", "--limit", "3"),
    ],
    ids=lambda words: words[0],
)
def test_the_unit_runs_what_was_typed(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.gang.steps.guard.unit.unit_folder", lambda: tmp_path / "units")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(INVENTORY)
    assert cli.main([*words, "-i", str(hosts), "--install", "--json"]) == 0
    told = capsys.readouterr()
    text = Path(json.loads(told.out)["unit"]).read_text()
    assert "systemctl" in told.err
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    runs = re.findall(r'"([^"]*)"', line)[3:]
    parser, _ = parser_of(words[0])
    wanted, got = parser.parse_args([*words, "-i", str(hosts)]), parser.parse_args(runs)
    assert vars(got) == vars(wanted)
