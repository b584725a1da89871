"""sglang-router's interface: its answers (as recorded from 0.3.2), and what an engine reports of its load."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from orchestrator.engines import router, serving
from orchestrator.engines.registry import engine_of
from orchestrator.model.profile import Stack

LISTED = (
    '{"workers":[{"id":"66cff94d-d8d2-493c-ad90-ddb00c2579bb","url":"http://10.172.135.10:8000","model_id":'
    '"/workspace/mini-v3","priority":50,"cost":1.0,"worker_type":"regular","is_healthy":true,"load":3,'
    '"connection_mode":"HTTP"}],"total":1,"stats":{"prefill_count":0,"decode_count":0,"regular_count":1}}'
)


def test_workers() -> None:
    (worker,) = serving.workers(LISTED)
    assert (worker.url, worker.healthy, worker.load) == ("http://10.172.135.10:8000", True, 3)
    for wrong in ("No models available", "[]", '{"workers":[{}]}'):
        with pytest.raises(ValueError):
            serving.workers(wrong)


@pytest.mark.parametrize(
    ("body", "running"),
    [
        ('{"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1}]}', 3),
        ('{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 1}] }', 1),
        ('{"loads": []}', 0),
        ('sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n', 3),
        ("# HELP nothing\n", None),
        ('{"detail": "Not Found"}', None),
    ],
)
def test_running_requests(body: str, running: int | None) -> None:
    assert serving.running_requests(body) == running


@pytest.mark.parametrize(
    ("body", "finished"),
    [
        ('sglang:num_requests_total{model_name="m"} 4.0\nsglang:num_requests_total{model_name="n"} 1.2e+03\n', 1204),
        ("sglang:num_requests_total 7\n", 7),
        ('{"loads": []}', None),
        ("sglang:num_requests_total ....\n", None),
    ],
)
def test_finished_requests(body: str, finished: int | None) -> None:
    assert serving.finished_requests(body) == finished


def test_the_launch_script_is_what_is_run() -> None:
    words = router.command("/opt/it's/python3", "0.0.0.0", 30000, 29000, "/ready", tls=True)
    script = router.launch_script(["printf", "%s\n", *words])
    asked: dict[str, Any] = {"input": script, "env": {"L40S_GANG_DIR": "/g $1"}, "timeout": 10}
    said = subprocess.run(["/bin/sh"], capture_output=True, text=True, check=True, **asked).stdout
    assert said.splitlines() == [word.replace("$L40S_GANG_DIR", "/g $1") for word in words]


@pytest.mark.parametrize(
    ("versions", "path"),
    [
        ((), "/ready"),
        (("0.5.23",), "/ready"),
        (("0.5.17",), "/health"),
        (("0.5.23", "0.5.17"), "/health"),
        (("0.5.23", "0.4.4.post1"), "/health"),
    ],
)
def test_health_path(versions: tuple[str, ...], path: str) -> None:
    engines = [engine_of(stack(version)) for version in versions]
    assert router.health_path(engines, engine_of(stack("0.5.23"))) == path


def stack(version: str) -> Stack:
    return Stack(
        name="mine", source="", dialect="sglang-" + version[:3].replace("0.4", "0.4.4"), engine_version=version
    )
