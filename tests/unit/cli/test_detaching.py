"""For every verb, a lost terminal and SIGTERM act like Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.detaching import detaching
from orchestrator.cli.screen import Screen
from orchestrator.model.errors import Detached

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
