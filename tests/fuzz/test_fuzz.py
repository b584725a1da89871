"""A sample of `make fuzz`, in a process of its own with a limit of memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.__main__ import wrong
from tests.fuzz.answers import every_verb
from tests.fuzz.forged import EVIL, sound
from tests.fuzz.secret_lines import SHAPES, odd_line, scrub
from tests.fuzz.targets import targets
from tests.support.turns import drawn

from orchestrator.gang.agreement import BelievedService
from orchestrator.loading.profiles import load_stack
from orchestrator.node.dispatch import VERBS

REGRESSIONS = {
    "inventory": (b"gangs: {hosts: {a: {l40s_lease_s: 1" + b"0" * 400 + b"}}}", b"gangs: {hosts: " + b"a" * 300 + b"}"),
    "plan": (b"[" * 100_000,),
    "profile": (b"[" * 100_000, b"{a: " * 100_000, b"a: !!timestamp 2001-99-99", b"\xff"),
    "stack": (b"[" * 100_000, b"? [a]\n: b"),
    "config": (b"[" * 100_000, b'{"quantization_config": {"quant_method": "fp8", "weight_block_size": [1e400, 9]}}'),
    "index": (
        b"[" * 100_000, b'{"weight_map": {"a": "\\u0000"}}', b'{"weight_map": {"a": "\\ud800"}}',
        b'{"weight_map": {"a": "' + b"x" * 300 + b'"}}', b'{"weight_map": {"a": [1]}}',
    ),
    "shard": ((5000).to_bytes(8, "little") + b"[" * 5000,),
    "ssh_config": (b"Include ~no-such-user/x\n", b"Include \0\n"),
    "snapshot": (b'{"format": 1, "taken_at": 1' + b"0" * 400 + b"}",),
    "answers": (
        b'reblock\n{"doing": 1, "progress": {"eta": 1}}', b'reblock\n{"outcome": {"written": 5}}',
        b'download\n{"doing": "x"}', b'download\n{"outcome": {"files": "many"}}', b"reblock\n" + b"[" * 100_000,
        b'tune\n{"ok": true, "value": null}', b'tune\n{"ok": true, "value": {"written": 5}}',
        b'inspect\n{"ok": true, "value": {"config": {}}}', b'job\n{"step": 9, "group": 0}',
        b'job\n{"step": 0, "group": 7}', b'job\n{"died": 5, "signal": 9}', b'job\n{"done": 99}',
        b'ask\n{"ok": true, "value": {"answers": [{"status": 200, "body": "' + b"[" * 100_000 + b'"}]}}',
        b'ask\n{"ok": true, "value": {"answers": [{"status": 200, "body": "{\\"loads\\": [{\\"x\\": 1e999}]}"}]}}',
        b'prerequisites\n{"ok": true, "value": {"config": "' + b"[" * 100_000 + b'"}}',
        b'push-offer\n' + b"[" * 100_000,
    ),
    "forged": (
        b'{"liar": "node0", "report": {"stack": "' + b"x" * 300 + b'"}, "request": null}',
        b'{"liar": "node1", "report": null, "request": {"service": {"url": "http://[::1"}}}',
    ),
    "probe": (
        b'probe\n{"ok": true, "value": {"format": 1, "host": {"clock": 1' + b"0" * 400 + b"}}}",
        b'probe\n{"ok": true, "value": {"format": 1, "nvml": {"devices": [[[1' + b"0" * 30 + b"]]]}}}",
    ),
}  # fmt: skip
"""Files that once ended in a foreign exception, or nearly."""
CASES = 2_000
"""In a run, others for each commit; `make fuzz` plays 100,000."""


def test_every_verb_of_the_node_application_is_answered_oddly() -> None:
    assert every_verb().keys() == VERBS.keys()


def test_a_defect_in_reading_an_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.nettest.steps.nettest._NettestAnswers.odd", lambda *_: "")
    (target,) = [one for one in targets(tmp_path) if one.name == "answers"]
    file = tmp_path / "case.json"
    file.write_bytes(b'job\n{"step": 9, "group": 0, "us": 1}\n{"ended": 0}')
    assert wrong(target, file).startswith("KeyError at nettest/verdict.py")


def _trusting(gang: object, leader: str, claim: str, **_: object) -> BelievedService:
    return BelievedService(url=claim)


def test_a_lie_that_is_taken_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = [one for one in targets(tmp_path) if one.name == "forged"]
    file = tmp_path / "case.json"
    case = json.loads(sound())
    file.write_text(json.dumps(case))
    assert wrong(target, file) == ""
    case["report"]["service_url"] = "http://127.0.0.1:18677"
    file.write_text(json.dumps(case))
    assert wrong(target, file) == ""
    monkeypatch.setattr("orchestrator.gang.steps.status.reports.service_of", _trusting)
    assert "an address was taken: 'http://127.0.0.1:18677'" in wrong(target, file)


def test_a_path_that_is_opened_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = [one for one in targets(tmp_path) if one.name == "forged"]
    file = tmp_path / "case.json"
    case = json.loads(sound())
    case["report"]["stack"] = EVIL
    file.write_text(json.dumps(case))
    assert wrong(target, file) == ""
    monkeypatch.setattr("orchestrator.gang.steps.router.router_start.reported_stack", load_stack)
    assert "a path of a node was used" in wrong(target, file)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_generated_secret_is_left_in_any_shape(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.secret_lines.SHAPES", {shape: SHAPES[shape]})
    seed = drawn("secrets")
    for number in range(300):
        case = odd_line(random.Random(f"{seed}/{number}"))
        try:
            scrub(case)
        except AssertionError as left:
            raise AssertionError(f"{left}: {case.decode()}") from None


def test_a_secret_that_is_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.secret_lines.without_secrets", lambda text: text)
    with pytest.raises(AssertionError, match="leaves a secret"):
        scrub(odd_line(random.Random(1)))


@pytest.mark.processes
def test_a_sample_of_odd_files_ends_in_values_or_words() -> None:
    seed = drawn("odd files")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--cases", str(CASES), "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"--seed {seed}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("name", REGRESSIONS)
def test_what_was_found_once_stays_in_words(tmp_path: Path, name: str) -> None:
    (target,) = [one for one in targets(tmp_path) if one.name == name]
    for data in REGRESSIONS[name]:
        file = tmp_path / f"case.{target.suffix}"
        file.write_bytes(data)
        assert wrong(target, file) == "", data[:80]
