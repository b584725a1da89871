"""sglang-router's words: what it answers (as recorded from 0.3.2), and what an engine tells of its load."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.engines import router

LISTED = (
    '{"workers":[{"id":"66cff94d-d8d2-493c-ad90-ddb00c2579bb","url":"http://10.172.135.10:8000","model_id":'
    '"/workspace/mini-v3","priority":50,"cost":1.0,"worker_type":"regular","is_healthy":true,"load":3,'
    '"connection_mode":"HTTP"}],"total":1,"stats":{"prefill_count":0,"decode_count":0,"regular_count":1}}'
)


def test_workers() -> None:
    (worker,) = router.workers(LISTED)
    assert (worker.url, worker.healthy, worker.load) == ("http://10.172.135.10:8000", True, 3)
    for wrong in ("No models available", "[]", '{"workers":[{}]}'):
        with pytest.raises(ValueError):
            router.workers(wrong)


@pytest.mark.parametrize(
    ("body", "running"),
    [
        ('{"loads": [{"num_total_reqs": 2}, {"num_total_reqs": 1}]}', 3),
        ('{"loads": []}', 0),
        ('sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n', 3),
        ("# HELP nothing\n", None),
        ('{"detail": "Not Found"}', None),
    ],
)
def test_running_requests(body: str, running: int | None) -> None:
    assert router.running_requests(body) == running


def test_the_launch_script_is_what_is_run() -> None:
    words = router.command("/opt/it's/python3", "0.0.0.0", 30000, 29000, "/ready", ["http://a:1"])
    script = router.launch_script(["printf", "%s\n", *words])
    said = subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, check=True, timeout=10).stdout
    assert said.splitlines() == words


@pytest.mark.parametrize(
    ("stacks", "path"),
    [([], "/ready"), (["sglang-0.5.23"], "/ready"), (["sglang-0.5.23", "sglang-0.4.4-l40s"], "/health")],
)
def test_health_path(stacks: list[str], path: str) -> None:
    assert router.health_path(stacks) == path
