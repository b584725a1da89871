"""For every verb, a lost terminal and SIGTERM act like Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.detaching import detaching
from orchestrator.cli.screen import Screen
from orchestrator.protocol.errors import Detached

VERB = """
import os, signal, sys, time
from orchestrator.cli import main
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import restart

def run(args, screen):
    try:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        time.sleep(30)
    except KeyboardInterrupt:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))  # a second one comes while it tidies up
        print("tidied up", flush=True)
        return 130
    return 1

restart.run = run
sys.exit(main.main(["restart"]))
"""


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_a_signal_detaches_once(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", VERB, name], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (130, "tidied up\n"), done.stderr


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with detaching():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_afterwards_signals_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Detached), detaching():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_talk_that_nobody_reads_detaches_and_is_silent_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        with pytest.raises(Detached):
            Screen().say("is anybody there?")
        Screen().say("nobody is")


def test_a_result_that_is_cut_short_is_no_defect(tmp_path: Path) -> None:
    typed = f"{sys.executable} -m orchestrator.cli.main lab faults | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


_MANY = "for _ in range(9999): print('a long answer')"
UNWRITTEN = {
    "a short answer": "screen.verbatim('ready'); return 0",
    "a long one": f"{_MANY}\n    return 0",
    "a drawn one": "screen.out.print('ready'); return 3",
    "a document": "screen.json({}); return 5",
    "with words before it": "screen.say('inventory: hosts.yml'); screen.verbatim('ready'); return 0",
    "beside a failure": "screen.verbatim('half'); raise InputError('no', where='here', fix='do')",
}
RUNS = """
import sys
from orchestrator.cli import main
from orchestrator.gang.commands import status
from orchestrator.protocol.errors import InputError

def run(args, screen):
    {}

status.run = run
sys.exit(main.main(["status"]))
"""


@pytest.mark.turns(play=6)
@pytest.mark.parametrize(("said", "unbuffered"), [(">/dev/full", ""), (">/dev/full", "1"), (">&- 2>/dev/full", "")])
@pytest.mark.parametrize("case", [*UNWRITTEN, "--help", "--version"])
def test_an_answer_that_is_not_written_is_one_line_and_a_code_of_its_own(case: str, said: str, unbuffered: str) -> None:
    code = RUNS.format(UNWRITTEN[case]) if case in UNWRITTEN else RUNS.replace('["status"]', f'["{case}"]')
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {said}', sys.executable, code],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    failed = case == "beside a failure" and not unbuffered
    assert done.returncode == (2 if failed else 8), done.stderr
    if "2>" in said:
        return
    lines = [line for line in done.stderr.splitlines() if not line.startswith("inventory")]
    if failed:
        assert lines == ["error: here: no", "  fix: do"]
    else:
        (line,) = lines
        assert line.startswith("error: output: could not be written: ")


def test_talk_that_finds_a_full_disk_ends_nothing() -> None:
    code = RUNS.format("screen.say('starting'); screen.verbatim('ready'); return 0")
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" 2>/dev/full', sys.executable, code],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ready\n")


@pytest.mark.turns
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_a_locale_without_our_signs_costs_these_and_not_the_answer(encoding: str) -> None:
    said = "screen.say('主机 ✗'); screen.verbatim('└── ✗ no link'); screen.json({'node': '✗'}); return 0"
    code = RUNS.format(said)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.decode(encoding).splitlines()[0].endswith("? no link")
    assert json.loads(done.stdout.decode(encoding).partition("\n")[2]) == {"node": "✗"}
    assert done.stderr.decode(encoding).rstrip().endswith("?")


def test_a_json_document_drives_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"text": "ü 主机 \x1b[2J \x9b31m \u202e\u200b \x7f \ud800 \U000e0001"}
    Screen(as_json=True).json(told)
    text = capsys.readouterr().out
    assert json.loads(text) == told
    assert "ü 主机" in text
    assert all(char.isprintable() or char == "\n" for char in text)
