"""`golden` against a gang of two emulated nodes: accepted, the same, one token changed, the same again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_lab import SmallLab, small_lab

from l40s_lab.standin.answers import NOTICE

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("golden", nodes=2) as made:
        made.serve()
        yield made


def golden(lab: SmallLab, verb: str, code: int) -> dict[str, Any]:
    done = lab.deploy("golden", verb, "--json", check=False)
    assert done.returncode == code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_one_changed_token_is_named_by_prompt_and_position(lab: SmallLab) -> None:
    assert golden(lab, "check", 2)["verdict"] == "none"
    accepted = golden(lab, "accept", 0)
    assert (accepted["verdict"], accepted["gangs"][0]["varies"]) == ("same", [])
    assert Path(accepted["gangs"][0]["file"]).is_file()
    checked = golden(lab, "check", 0)
    assert checked["verdict"] == "same"
    assert [prompt["same"] for prompt in checked["prompts"]] == [True] * 12
    lab.deploy("lab", "break", "node0", "wrong-token", "--name", lab.name)
    found = golden(lab, "check", 7)
    assert found["verdict"] == "differs"
    assert [prompt["same"] for prompt in found["prompts"]] == [False] * 12
    fact = next(prompt for prompt in found["prompts"] if prompt["id"] == "english-fact")
    assert fact["expected"] == f"{NOTICE} Paris."
    assert (fact["position"], fact["found"]) == (2, f"{NOTICE} Paris?"), "the third token, and nothing before it"
    said = lab.deploy("golden", "check", check=False)
    assert "english-fact: differs from token" in said.stdout
    watched = lab.deploy("guard", "--once", check=False)
    assert "GOLDEN-DIFFERS" in watched.stderr and "is now" in watched.stderr
    again = lab.deploy("restart", "--now", check=False)
    assert again.returncode == 7, again.stderr
    assert "english-fact: from token" in again.stderr and lab.gang()["state"] == "ready"
    assert lab.deploy("restart", "--now", "--no-golden").returncode == 0
    lab.deploy("lab", "heal", "node0", "wrong-token", "--name", lab.name)
    assert golden(lab, "check", 0)["verdict"] == "same"
    assert "gives the 12 accepted answers" in lab.deploy("restart", "--now").stderr


def test_without_a_gang_that_serves_there_is_nothing_to_ask(lab: SmallLab) -> None:
    lab.deploy("down")
    done = lab.deploy("golden", "accept", check=False)
    assert done.returncode == 2
    assert "serves no requests" in done.stderr
