"""Two gangs of two models behind the real router: a request is only ever answered by the model that it names."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.support.load import Load, Stream
from tests.support.load import answered as asked
from tests.support.router import OLD_ROUTER, NotInstalled, router_environment, router_group
from tests.support.small_lab import MODEL, SmallLab
from tests.support.waiting import until

from .conftest import BEHIND_ONE_ROUTER, needs_root, routed_lab

pytestmark = [pytest.mark.lab, needs_root, BEHIND_ONE_ROUTER]
OTHER = "other-v3"
SAYS_MODEL = {"STANDIN_SAYS_MODEL": "1"}
ENOUGH = 50


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with routed_lab("models", gangs=2, nodes=1, env=SAYS_MODEL) as made:
        other = yaml.safe_load(made.profile.read_text()) | {"name": OTHER}
        (made.folder / f"{OTHER}.yml").write_text(yaml.safe_dump(other))
        made.serve("--gang", "gang0")
        made.deploy("up", "--model", str(made.folder / f"{OTHER}.yml"), "--gang", "gang1")
        yield made


def ask(lab: SmallLab, model: str) -> int:
    """The status of one request for this model."""
    body = json.dumps({"model": model, "prompt": "x", "max_tokens": 2}).encode()
    asked = urllib.request.Request(f"{lab.router_url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def listed(lab: SmallLab) -> list[str]:
    with urllib.request.urlopen(f"{lab.router_url}/v1/models", timeout=20) as answer:
        return sorted(model["id"] for model in json.load(answer)["data"])


def loaded(lab: SmallLab, model: str) -> Load:
    """What became of a load of requests for this model: enough of them, or the first that failed."""
    with Load(lab.router_url, model, clients=4, pause_s=0.05, wants=f" by {model}") as load:
        until(lambda: load.good >= ENOUGH or load.bad, 60.0)
    return load


def answered(lab: SmallLab) -> dict[str, int]:
    """Requests that each gang's engine has answered, by its own count."""
    counts = {}
    for gang in lab.json("status")["gangs"]:
        with urllib.request.urlopen(f"{gang['service']['url']}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        (counts[gang["name"]],) = map(int, re.findall(r"^sglang:num_requests_total\S* (\d+)$", text, re.MULTILINE))
    return counts


def router(lab: SmallLab) -> Any:
    """The router of a `status` in whose few seconds it answered."""
    return until(lambda: (told := lab.json("status")["router"])["workers"] is not None and told, 60.0)


def models(lab: SmallLab) -> dict[str, list[str]]:
    return {model["name"]: model["gangs"] for model in router(lab)["models"]}


def second_serves(lab: SmallLab, model: str) -> None:
    """gang1 has this model, whatever was played before."""
    lab.deploy("up", "--model", str(lab.folder / f"{model}.yml"), "--gang", "gang1", "--replace")


def test_a_request_is_answered_by_its_own_model_alone(lab: SmallLab) -> None:
    assert listed(lab) == sorted((MODEL, OTHER))
    assert models(lab) == {MODEL: ["gang0"], OTHER: ["gang1"]}
    for model, own, foreign in ((MODEL, "gang0", "gang1"), (OTHER, "gang1", "gang0")):
        before = answered(lab)
        load = loaded(lab, model)
        after = answered(lab)
        assert load.bad == [] and after[own] - before[own] >= ENOUGH
        assert after[foreign] == before[foreign]
    assert ask(lab, "nobody-serves-this") == 404


@pytest.mark.turns(of="models: no request goes astray while gangs change")
def test_a_gang_that_changes_its_model_answers_for_no_other_at_any_moment(lab: SmallLab) -> None:
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1, wants=f" by {MODEL}") as load:
        lab.serve("--gang", "gang1", "--replace")
        until(lambda: load.good >= ENOUGH or load.bad, 60.0)
    assert load.bad == []
    assert listed(lab) == [MODEL] and models(lab) == {MODEL: ["gang0", "gang1"]}
    assert ask(lab, OTHER) == 404


@pytest.mark.turns(of="models: no request goes astray while gangs change")
def test_a_gang_is_removed_and_added_again_under_load_and_found_by_an_alias(lab: SmallLab) -> None:
    second_serves(lab, MODEL)
    document = yaml.safe_load(lab.inventory.read_text())
    gang = document["all"]["children"]["gangs"]["children"]["gang0"]
    gang["vars"] = {**(gang.get("vars") or {}), "l40s_aliases": ["default"]}
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    assert ask(lab, "default") == 404
    with Load(lab.router_url, MODEL, clients=4, pause_s=0.2) as load:
        lab.deploy("router", "remove", "gang1")
        assert models(lab) == {MODEL: ["gang0"]}
        lab.deploy("router", "add", "gang1")
        lab.deploy("router", "add", "gang0")
        until(lambda: load.good >= ENOUGH or load.bad, 60.0)
    assert load.bad == [] and ask(lab, "default") == 200
    (only,) = [model for model in router(lab)["models"] if model["name"] == MODEL]
    assert only["aliases"] == ["default"]
    assert "nobody else serves" not in lab.deploy("router", "remove", "gang1").stderr
    lab.deploy("router", "add", "gang1")


@pytest.mark.turns(of="models: no request goes astray while gangs change")
def test_the_address_of_a_gang_that_died_is_not_taken_for_its_old_model(lab: SmallLab) -> None:
    """Its entry stays in the router, which would send the old model's requests there as soon as somebody answers."""
    second_serves(lab, MODEL)
    node, pid = lab.rank(0, gang=1)
    lab.on(node, f"kill -9 {pid}")
    until(lambda: lab.gang(1)["state"] == "failed", 60.0)
    lab.deploy("up", "--model", str(lab.folder / f"{OTHER}.yml"), "--gang", "gang1")
    before = answered(lab)
    load = loaded(lab, MODEL)
    assert load.bad == [] and answered(lab)["gang1"] == before["gang1"]
    assert models(lab) == {MODEL: ["gang0"], OTHER: ["gang1"]}


@pytest.mark.turns(of="models: what the router does not take is refused, and nothing stops for it")
def test_the_router_refuses_what_is_too_much_and_leaves_no_gang_alone_for_it(lab: SmallLab) -> None:
    """429 and Retry-After by its own limit; the gangs' circuits stay closed, so that the next request is served."""
    second_serves(lab, OTHER)
    most = 3
    group = router_group(router_environment(), lab.folder / "router", lab.router_port)
    group["vars"]["l40s_router_max_requests"] = most
    lab.write_inventory(router=group)
    assert "its settings differ" in lab.deploy("router", "up").stderr
    lab.deploy("router", "down")
    lab.deploy("router", "up")
    assert router(lab)["max_requests"] == most
    assert f"at most {most} requests at once" in lab.deploy("router", "status").stdout

    streams = [Stream.of(lab.router_url, MODEL, 4000) for _ in range(most)]
    for stream in streams:
        stream.under_way()
    with asked(f"{lab.router_url}/v1/completions", {"model": OTHER, "prompt": "x", "max_tokens": 2}) as refused:
        assert refused.status == 429 and int(refused.headers["Retry-After"]) > 0
        assert "concurrency limit" in refused.read().decode()
    assert listed(lab) == sorted((MODEL, OTHER)) and all(worker["healthy"] for worker in router(lab)["workers"])
    for stream in streams:
        stream.abandon()
    until(lambda: ask(lab, MODEL) == 200 and ask(lab, OTHER) == 200, 30.0)

    group["vars"]["l40s_router_max_requests"] = "auto"
    lab.write_inventory(router=group)
    lab.deploy("router", "down")
    lab.deploy("router", "up")
    chosen = router(lab)["max_requests"]
    assert chosen == lab.json("plan", "--model", str(lab.profile))["router"]["max_requests"], (
        "both models are of one size"
    )


@pytest.mark.turns(of="models: what the router does not take is refused, and nothing stops for it")
def test_behind_the_old_router_a_second_model_is_refused_and_nothing_stops(lab: SmallLab) -> None:
    try:
        old = router_environment(OLD_ROUTER)
    except NotInstalled as why:
        pytest.skip(str(why))
    lab.serve("--gang", "gang1", "--replace")
    lab.deploy("router", "down")
    lab.write_inventory(router=router_group(old, lab.folder / "router", lab.router_port))
    lab.deploy("router", "up")
    assert models(lab) == {MODEL: ["gang0", "gang1"]}
    runs = [gang["run_id"] for gang in lab.json("status")["gangs"]]
    words = ("up", "--model", str(lab.folder / f"{OTHER}.yml"), "--gang", "gang1", "--replace")
    for more in ((), ("--dry-run",)):
        refused = lab.deploy(*words, *more, code=3)
        assert "ROUTER-MODEL-MIXED" in refused.stderr and "prepare --tags router_env" in refused.stderr
    assert [gang["run_id"] for gang in lab.json("status")["gangs"]] == runs
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
        lab.deploy("restart", "--rolling")
    assert load.bad == [] and load.good > 0
