"""The real engine gives the same text alone and among others, time after time: no false alarm of
`golden check --requests`."""

from __future__ import annotations

import json
import os

import pytest
from tests.support.small_lab import small_lab

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(4000)]
ROUNDS = int(os.environ.get("BATCH_ROUNDS", "100"))


def test_a_healthy_engine_differs_in_no_batch() -> None:
    with small_lab(f"batches-{os.getpid()}", engine="sglang") as lab:
        lab.serve()
        accepted = json.loads(lab.deploy("golden", "accept", "--json").stdout)
        (gang,) = accepted["gangs"]
        assert accepted["verdict"] == "same" and gang["in_batches"]["differ"] == []
        for _ in range(ROUNDS):
            checked = json.loads(lab.deploy("golden", "check", "--requests", "16", "--json").stdout)
            assert checked["verdict"] == "same"
        print(f"{ROUNDS} rounds, {gang['in_batches']['answers']} answers in batches when accepted")
