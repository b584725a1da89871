"""Staging makes the plan's cache folder, and no folder outside the state directory."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from orchestrator.node.verbs import stage


def request(state: Path, cache: str) -> dict[str, object]:
    return {
        "run_id": "r1",
        "gang": "gang0",
        "node": "node0",
        "node_rank": 0,
        "nnodes": 1,
        "state_dir": str(state),
        "argv": ["/bin/true"],
        "env": {"XDG_CACHE_HOME": cache},
        "leader": {"address": "127.0.0.1", "port": 7700},
        "key": "00",
        "launch_script": "#!/bin/sh\nexec /bin/true\n",
    }


def test_the_cache_folder_is_made_for_the_engine_alone(tmp_path: Path) -> None:
    cache = tmp_path / "state/cache/sglang-0.5.23"
    stage.answer(request(tmp_path / "state", str(cache)))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@pytest.mark.parametrize("outside", ["{}/elsewhere", "{}/state/../elsewhere", ""])
def test_a_cache_elsewhere_is_the_operators_own_business(tmp_path: Path, outside: str) -> None:
    stage.answer(request(tmp_path / "state", outside.format(tmp_path)))
    assert not (tmp_path / "elsewhere").exists()
