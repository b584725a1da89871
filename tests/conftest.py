"""Which tests are quick: those that start processes of their own (sshds, agents, engines, ansible) are marked here.

`make check` leaves them out to stay under a minute; `make test` and CI run everything.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.support import preloaded, schedule, turns
from tests.support.waiting import examples

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile(
    "busy-machine", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy-machine")

# A shell starts what runs in its background deaf to Ctrl-C, and all that it starts in turn; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup(1) what it runs, to a terminal that closes

# `python3` may be a script that looks for one (pyenv's shims): 80 ms of the processor for each process of a node.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).resolve().parent), os.environ.get("PATH", os.defpath)))

ROOT = Path(__file__).resolve().parents[1]

gc.disable()  # until all is collected: nothing of it becomes garbage


def pytest_configure(config: pytest.Config) -> None:
    """xdist's controller alone writes durations, and the page of variations, down; a pytest that a test starts writes
    none."""
    asked = schedule.of_a_run(os.environ)
    config.pluginmanager.register(turns.Turns(asked.get("TURN", "")))
    if asked.get(schedule.RECORD) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(schedule.Recorder())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> schedule.LongestFirst | None:
    """A run by files (`--dist loadfile`) has our order; any other one is spread as xdist does it."""
    return schedule.LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by place, so that a new test of such a folder needs no thought."""
    for item in items:
        if _starts_processes(item.path):
            item.add_marker(pytest.mark.processes)


@cache
def _starts_processes(path: Path) -> bool:
    return schedule.scope_of(path.relative_to(ROOT).as_posix()).startswith(schedule.WITH_PROCESSES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """No command goes on where its test ended, as by its time limit."""
    with preloaded.ended_afterwards():
        return (yield)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no look for garbage goes through it again, a tenth of the quick tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_inventory_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command reads one inventory in its life; stacks and profiles beside it are of no concern to the next test."""
    monkeypatch.setattr("orchestrator.loading.resources._beside", [])
