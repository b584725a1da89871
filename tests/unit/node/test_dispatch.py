"""Role `stay`, in a process of its own as on a node."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import slack, until

from orchestrator.node import dispatch
from orchestrator.node.requests import in_parts
from orchestrator.remote.commands import LONGEST


class Staying:
    """The process, and the number of the last request."""

    def __init__(self) -> None:
        piped = subprocess.PIPE
        self.process = subprocess.Popen(dispatch.command("stay"), stdin=piped, stdout=piped)
        self.last = 0

    def send(self, verb: str, **request: Any) -> None:
        self.last += 1
        self.write(json.dumps({"id": self.last, "verb": verb, "request": request}))

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        self.send(verb, **request)
        answer = self.answer()
        assert answer["id"] == self.last
        return answer


@pytest.fixture
def staying() -> Iterator[Staying]:
    made = Staying()
    yield made
    made.process.communicate(timeout=30 * slack())
    assert made.process.returncode == 0


def test_small_verbs_and_others_are_answered_in_turn(staying: Staying, tmp_path: Path) -> None:
    here = {"state_dir": str(tmp_path), "gang": "gang0"}
    for _ in range(2):
        assert staying.ask("report", **here)["value"]["reports"] == []
        assert staying.ask("stop", **here)["value"]["state"] == "absent"
    assert staying.ask("staged", **here)["error"]["kind"] == "no-run"
    assert "no verb 'nonsense'" in staying.ask("nonsense")["error"]["what"]
    assert "more than one answer" in staying.ask("job")["error"]["what"]
    staying.write("{")
    assert staying.answer()["error"]["kind"] == "bad-request"


def test_a_look_changes_no_limit_of_the_process_and_knows_its_own_age(staying: Staying) -> None:
    limits = Path(f"/proc/{staying.process.pid}/limits")
    before = limits.read_text()
    first, second = (staying.ask("probe", nvml_deadline_s=0.1)["value"]["host"] for _ in range(2))
    assert limits.read_text() == before
    assert first["clock"] < second["clock"]
    assert first["probe_seconds"]["files"] < first["probe_seconds"]["all"]
    assert second["probe_seconds"]["all"] < second["clock"] - first["clock"] + 0.02


def test_a_verb_that_is_killed_is_an_answer_and_the_next_one_is_served(staying: Staying, tmp_path: Path) -> None:
    here = {"state_dir": str(tmp_path), "gang": "gang0"}
    nobody = {"kind": "tcp", "address": "127.0.0.1", "port": 1}
    staying.send("dial", targets=[nobody], tries=1000, spacing_s=0.5)
    children = Path(f"/proc/{staying.process.pid}/task/{staying.process.pid}/children")
    child = until(lambda: children.read_text().split(), 30.0)[0]
    os.kill(int(child), signal.SIGKILL)
    assert "a signal (9)" in staying.answer()["error"]["what"]
    assert staying.ask("stop", **here)["ok"]


def test_the_modules_of_a_verb_are_loaded_once_for_all_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loads = tmp_path / "loads"
    begin = f"with open({str(loads)!r}, 'a') as file:\n    file.write('x')\n"
    (tmp_path / "verb_that_counts.py").write_text(begin + "def answer(request):\n    return 7\n")
    (tmp_path / "verb_that_breaks.py").write_text(begin + "1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    verbs = {"counts": "verb_that_counts:answer", "breaks": "verb_that_breaks:answer"}
    monkeypatch.setattr(dispatch, "VERBS", dispatch.VERBS | verbs)
    for verb in ("counts", "counts", "breaks"):
        dispatch._answer_line(json.dumps({"id": 1, "verb": verb, "request": {}}).encode())
    first, second, broken = map(json.loads, capfd.readouterr().out.splitlines())
    assert first == second == {"id": 1, "ok": True, "value": 7}
    assert "ZeroDivisionError" in broken["error"]["what"]
    assert loads.read_text() == "x" + "xx", "what breaks is tried here, and told by the process that answers"


def test_parts_together_are_the_list_and_none_is_too_long() -> None:
    digests = {f"model-{number:05d}-of-20000-\u00e9.safetensors": "f" * 64 for number in range(20_000)}
    parts = list(in_parts(digests.items()))
    assert dict(pair for part in parts for pair in part) == digests
    assert len(json.dumps({"digests": digests})) > LONGEST
    assert max(len(json.dumps(part)) for part in parts) < LONGEST / 2
    assert not list(in_parts([]))


@pytest.mark.parametrize(
    ("wrong", "kind"), [(RuntimeError("can't start new thread"), "no-processes"), (MemoryError(), "no-memory")]
)
def test_a_lack_in_the_middle_of_a_verb_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, wrong: Exception, kind: str
) -> None:
    def refused(_: str) -> Any:
        raise wrong

    monkeypatch.setattr(dispatch, "_found", refused)
    answer = dispatch.answer_of("probe", {})
    assert answer is not None and answer["error"]["kind"] == kind and "trace" not in answer["error"]


def test_a_verb_for_which_no_process_is_left_is_answered_and_the_next_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    said: list[dict[str, Any]] = []
    monkeypatch.setattr(dispatch, "tell", said.append)
    monkeypatch.setattr(os, "fork", refused)
    dispatch._answer_line(json.dumps({"id": 7, "verb": "look", "request": {}}).encode())
    (answer,) = said
    assert (answer["id"], answer["error"]["kind"]) == (7, "no-processes")
    assert "ulimit -u" in answer["error"]["fix"]
