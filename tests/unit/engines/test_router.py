"""The router's interface: its answers (recorded from sglang-router 0.3.2 and smg 1.13.0), and an engine's load."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from orchestrator.engines import router, serving
from orchestrator.engines.registry import engine_of
from orchestrator.model.inventory import ROUTER_POLICIES
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


def test_it_looks_for_nothing_on_a_hub() -> None:
    script = router.launch_script(router.SGLANG_ROUTER, ["printenv", "HF_ENDPOINT"])
    said = subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, check=True, timeout=10).stdout
    assert said.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("policy", ROUTER_POLICIES)
def test_the_policy_is_the_inventorys(policy: str) -> None:
    words = router.command(router.InstalledRouter(router.SMG, "/v"), "0.0.0.0", 1, 2, "/ready", policy=policy)
    assert words[words.index("--policy") + 1] == policy and words.count("--policy") == 1


@pytest.mark.parametrize(("release", "more"), [(router.SMG, ["--stream-body-stall-timeout-secs", "60"]),
                                               (router.SGLANG_ROUTER, [])])  # fmt: skip
def test_what_is_too_much_is_refused_where_that_is_asked_for(release: router.RouterRelease, more: list[str]) -> None:
    at = router.InstalledRouter(release, "/v")
    usual, limited = (router.command(at, "::", 1, 2, "/ready", max_requests=most) for most in ("", "160"))
    assert limited == [*usual, "--max-concurrent-requests", "160", "--queue-size", "0", *more]


def test_the_launch_script_is_what_is_run() -> None:
    at = router.InstalledRouter(router.SMG, "/opt/it's")
    words = router.command(at, "0.0.0.0", 30000, 29000, "/ready", tls=True)
    script = router.launch_script(router.SMG, ["printf", "%s\n", *words])
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


SMG_LISTED = (
    '{"workers":[{"id":"01a2207d-39e5","model_id":"glm","url":"http://127.0.0.1:41001","models":[{"id":"glm","aliases":'
    '["default"],"model_type":["chat"],"context_length":4096}],"worker_type":"regular","connection_mode":"http",'
    '"runtime_type":"sglang","labels":{"l40s_run":"r1","served_model_name":"glm"},"priority":50,"cost":1.0,'
    '"is_healthy":true,"status":"ready","load":2,"http2":false},{"id":"01a2207d-39e6","model_id":"big","url":'
    '"http://127.0.0.1:41002","models":[{"id":"big"}],"labels":{},"is_healthy":false,"status":"draining","load":1}],'
    '"total":2,"stats":{"prefill_count":0,"decode_count":0,"regular_count":2}}'
)


def test_workers_by_model_without_those_that_were_removed() -> None:
    (worker,) = serving.workers(SMG_LISTED)
    assert (worker.url, worker.healthy, worker.load, worker.run) == ("http://127.0.0.1:41001", True, 2, "r1")
    assert worker.models == (serving.ServedModel("glm", ("default",)),)
    (old,) = serving.workers(LISTED)
    assert (old.models, old.run) == ((), "")
    for wrong in ('{"workers":[1]}', '{"workers":[{"id":1,"url":"u","is_healthy":true,"labels":[1]}]}'):
        with pytest.raises(ValueError):
            serving.workers(wrong)


def test_the_release_that_looks_at_models_is_preferred_wherever_it_is() -> None:
    usual, old = router.SMG.venv, router.SGLANG_ROUTER.venv
    has_old, has_smg = {"sglang-router": "0.3.2"}, {"smg": "1.13.0"}
    assert router.places(usual) == (usual, old) and router.places("/mine") == ("/mine",)
    assert router.installed({}, usual) == router.InstalledRouter(router.SMG, usual)
    assert router.installed({old: has_old}, usual) == router.InstalledRouter(router.SGLANG_ROUTER, old)
    assert router.installed({usual: has_smg, old: has_old}, usual) == router.InstalledRouter(router.SMG, usual)
    assert router.installed({"/mine": has_old}, "/mine") == router.InstalledRouter(router.SGLANG_ROUTER, "/mine")
    assert router.installed({"/mine": {**has_old, **has_smg}}, "/mine").release is router.SMG
    both = {usual: has_smg, old: has_old}
    assert router.installed(both, usual, two_keys=True) == router.InstalledRouter(router.SGLANG_ROUTER, old)
    assert router.installed({usual: has_smg}, usual, two_keys=True).release is router.SMG
    assert router.looks_at_models(router.SMG.name) and not router.looks_at_models(router.SGLANG_ROUTER.name)
