"""Reading ahead beside a running engine: while a controller listens; no process is left afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.waiting import until
from tests.unit.node.cache.test_reader import checkpoint

from orchestrator.node import itself, supervision


def _asked(folder: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        itself.command(itself.application(), "weights-ahead"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps({"order": {"folder": str(folder)}, "ranks": 8}).encode())
    child.stdin.close()
    return child


def _line(child: subprocess.Popen[bytes]) -> Any:
    assert child.stdout is not None
    return json.loads(child.stdout.readline())["cache"]


def _readers(folder: Path) -> list[int]:
    return [one.pid for one in supervision.everything() if str(folder) in supervision.title(one.pid)]


def test_it_reads_everything_and_says_so(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    with _asked(folder) as child:
        said = [_line(child)]
        while said[-1]["state"] == "reading":
            said.append(_line(child))
        assert (said[-1]["state"], said[-1]["done"], said[-1]["of"]) == ("done", 6015, 6015)
        assert child.wait(20) == 0


def test_it_ends_when_nobody_listens_any_more(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    slow = folder / "model-0.safetensors"
    slow.unlink()
    os.mkfifo(slow)
    with _asked(folder) as child:
        assert _line(child)["state"] == "reading"
        until(lambda: len(_readers(folder)) == 1, 20)
        assert child.stdout is not None
        child.stdout.close()
        until(lambda: child.poll() is not None and not _readers(folder), 20)
