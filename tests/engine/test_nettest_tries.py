"""Accuracy of the network test: tries on healthy links, and with each pair of nodes slowed in turn.

    L40S_NETTEST_TRIES=20 pytest tests/engine/test_nettest_tries.py       # 20 of each kind, on a busy machine too

Every try is a line of JSON in L40S_NETTEST_TRIES_FILE, with the command's time beyond its measurements.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_lab import SmallLab, small_lab

TRIES = int(os.environ.get("L40S_NETTEST_TRIES", "0"))

pytestmark = [
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.timeout(4 * 3600),
    pytest.mark.skipif(TRIES == 0, reason="half an hour and more: L40S_NETTEST_TRIES says how often"),
]


def test_a_slow_link_is_named_every_time_and_a_healthy_one_never(tmp_path: Path) -> None:
    file = Path(os.environ.get("L40S_NETTEST_TRIES_FILE") or tmp_path / "tries.jsonl")
    wrong = []
    with small_lab(f"tries-{os.getpid()}", nodes=4, engine="sglang", gpus=1) as lab:
        pairs = itertools.cycle(itertools.combinations(sorted(lab.hosts()), 2))
        for number, (one, two) in zip(range(TRIES), pairs, strict=False):
            healthy = _tried(lab)
            lab.run("break", one, "slow-link", two, "20mbit")
            try:
                slow = _tried(lab)
            finally:
                lab.run("heal", one)
            for tried, wanted in ((healthy, set()), (slow, {one, two})):
                named = set((tried["odd"] or {}).values())
                right = named == wanted and len(tried["findings"]) == bool(wanted)
                with file.open("a") as lines:
                    lines.write(json.dumps({"try": number, "wanted": sorted(wanted), "right": right, **tried}) + "\n")
                if not right:
                    wrong.append((number, sorted(wanted), tried))
    assert not wrong


def _tried(lab: SmallLab) -> dict[str, Any]:
    """The findings of one test, and its overhead; a machine too busy to finish in time counts as a wrong answer."""
    begin = time.monotonic()
    done = lab.deploy("nettest", "--model", lab.model, "--json", code=None, timeout=600)
    took = round(time.monotonic() - begin, 1)
    if done.returncode not in (0, 7):
        return {"odd": {"error": done.stderr[-300:]}, "findings": [], "took_s": took, "load": os.getloadavg()[0]}
    (gang,) = json.loads(done.stdout)["gangs"]
    return {
        "odd": gang["odd"] and {key: value for key, value in gang["odd"].items() if key in ("from", "to", "node")},
        "findings": [finding["id"] for finding in gang["findings"]],
        "slow": [link for link in gang["links"] if link["verdict"] == "slow"],
        "seconds": gang["seconds"],
        "measuring_s": gang["measuring_s"],
        "took_s": took,
        "load": os.getloadavg()[0],
    }
