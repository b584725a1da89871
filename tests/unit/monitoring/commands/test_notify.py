"""The verb `notify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.receiver import receiver

from orchestrator.cli import main as cli


def test_notify_tells_who_took_the_test_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.yml"
    with receiver() as pager:
        recipients = [{"kind": "webhook", "url": pager.url}, {"kind": "webhook", "url": "http://127.0.0.1:9/"}]
        document = {
            "vars": {"l40s_notify": recipients},
            "children": {"gangs": {"children": {"gang0": {"hosts": {"node0": {"ansible_host": "127.0.0.1"}}}}}},
        }
        hosts.write_text(json.dumps({"all": document}))
        assert cli.main(["notify", "-i", str(hosts), "--test", "--json"]) == 4
        first, second = json.loads(capsys.readouterr().out)["recipients"]
        assert first["error"] is None and second["error"]
        assert len(pager.documents()) == 1
        assert cli.main(["notify", "-i", str(hosts)]) == 0
        assert "failed" in capsys.readouterr().out and len(pager.documents()) == 1
