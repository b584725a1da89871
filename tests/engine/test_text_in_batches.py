"""The real engine gives the same text alone and among others, time after time: no false alarm of
`golden check --requests`. One start, BATCH_ROUNDS rounds; BATCH_LOG is a file that gets a line for each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import pytest
from tests.support.small_lab import SmallLab, small_lab

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(9000)]
ROUNDS = int(os.environ.get("BATCH_ROUNDS", "100"))
LOG = os.environ.get("BATCH_LOG", "")
AT_ONCE = "16"
SHORT = ("english-fact", "chinese-fact", "chinese-explain", "japanese-fact", "code-sql", "arithmetic")
"""Of the accepted prompts those that are asked again, the nearest ties among them: all eleven take twice as long."""


@contextmanager
def log() -> Iterator[TextIO | None]:
    with Path(LOG).open("a", buffering=1) if LOG else nullcontext() as file:
        yield file


def only_short(file: Path) -> dict[str, Any]:
    """What was accepted, without the other prompts."""
    accepted = json.loads(file.read_text())
    accepted["prompts"] = {name: accepted["prompts"][name] for name in SHORT}
    file.write_text(json.dumps(accepted))
    return dict(accepted)


def alarm(lab: SmallLab) -> list[str]:
    """What one round says that is wrong: a healthy engine is told of nothing."""
    done = lab.deploy("golden", "check", "--requests", AT_ONCE, "--json", code=None, timeout=600)
    checked = json.loads(done.stdout)
    (gang,) = checked["gangs"]
    told = [prompt["id"] for prompt in checked["prompts"] if not prompt["same"]]
    told += [json.dumps(each) for each in (gang["in_batches"] or {"differ": ["not asked"]})["differ"]]
    assert (checked["verdict"] == "same") == (not told) == (done.returncode == 0), done
    return told


def test_a_healthy_engine_differs_in_no_batch() -> None:
    with small_lab(f"batches-{os.getpid()}", engine="sglang", nodes=1) as lab, log() as file:
        lab.serve()
        accepted = json.loads(lab.deploy("golden", "accept", "--json", timeout=600).stdout)
        (gang,) = accepted["gangs"]
        assert accepted["verdict"] == "same" and gang["in_batches"]["differ"] == []
        noise = (
            f"{gang['in_batches']['answers']} answers in batches, noise {only_short(Path(gang['file']))['batch_noise']}"
        )
        print(noise, file=file)
        alarms, began = {}, time.monotonic()
        for number in range(1, ROUNDS + 1):
            told = alarm(lab)
            print(number, f"{time.monotonic() - began:.0f} s", told, file=file)
            if told:
                alarms[number] = told
        print(f"{ROUNDS} rounds in {time.monotonic() - began:.0f} s, {noise}: alarms in {sorted(alarms)}")
        assert alarms == {}
