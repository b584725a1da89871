"""Rolling restarts of three gangs behind the real sglang-router, under load without client retries."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.certificates import certified_key
from tests.support.load import Load
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import MODEL, SmallLab, guarding
from tests.support.waiting import slack, until

from .conftest import BEHIND_ONE_ROUTER, needs_root, routed_lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    needs_root,
    BEHIND_ONE_ROUTER,
]
NEXT_KEY = f"client-key-2-{os.getpid()}"
"""On no command line of this machine; a run of the tests beside this one has another."""
DIES = "rolling: what dies or does not rise ends nothing else"


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with routed_lab("rolling", gangs=3, nodes=1) as made:
        made.serve()
        yield made


def workers(lab: SmallLab) -> list[str]:
    return sorted(worker["url"] for worker in lab.json("router", "status")["workers"] if worker["healthy"])


def test_up_has_put_them_into_the_router_and_a_rehearsal_of_it_changes_nothing(lab: SmallLab) -> None:
    assert len(workers(lab)) == 3
    for verb, would in (("up", "is running and would be left unchanged; no gang"), ("down", "would be stopped on")):
        (gang,) = lab.json("router", verb, "--dry-run")["gangs"]
        assert (gang["name"], gang["state"]) == ("router", "ready") and gang["what"].startswith(would)
    assert len(workers(lab)) == 3


@pytest.mark.turns(of="rolling: no request fails while gangs change")
def test_no_request_fails_while_three_gangs_restart(lab: SmallLab) -> None:
    before = [gang["run_id"] for gang in lab.json("status")["gangs"]]
    with Load(lab.router_url, MODEL, clients=3, pause_s=0.1) as load:
        done = lab.deploy("restart")
    assert "restarted one after the other" in done.stdout
    assert load.bad == []
    assert load.good > 100
    after = lab.json("status")["gangs"]
    assert [gang["state"] for gang in after] == ["ready"] * 3
    assert not set(before) & {gang["run_id"] for gang in after}
    assert len(workers(lab)) == 3


@pytest.mark.turns(of=DIES)
def test_a_guard_brings_a_killed_router_back_and_every_record_has_it(lab: SmallLab) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{lab.router_url}/liveness", timeout=2).close()
        except (OSError, http.client.HTTPException):  # while it starts, its port may answer with less than a status
            return False
        return True

    def kill() -> None:
        report = json.loads((lab.folder / "router/gangs/router" / lab_run(lab) / "report.json").read_text())
        os.kill(report["engine_pid"], signal.SIGKILL)
        until(lambda: lab.json("router", "status")["state"] == "failed", 10.0)

    kill()
    told = lab.deploy("router", "status", code=5)
    assert "start it again: l40s-deploy router up" in told.stdout, told.stdout
    assert "\\x1b" not in told.stdout
    assert routed(lab)["router"]["error"]["fix"] == "l40s-deploy router up"
    (said,) = lab.json("why", "router")["gangs"]
    assert (said["name"], said["cause"]["signal"]) == ("router", 9)
    assert {run["gang"] for run in lab.json("history")["runs"]} == {"gang0", "gang1", "gang2", "router"}
    lab.deploy("logs", "router")
    words = [*L40S_DEPLOY, "guard", "gang0", "--golden-every", "0", "--pause", "0.1"]
    with guarding(words, lab.environment, lab.folder / "guard.txt"):
        until(answers, 20.0, (lab.folder / "guard.txt").read_text)
        until(lambda: len(workers(lab)) == 3, 30.0)
        kill()
        until(answers, 10.0, (lab.folder / "guard.txt").read_text)
        until(lambda: len(workers(lab)) == 3, 30.0)


def routed(lab: SmallLab) -> Any:
    """`status --json` of a moment in which the router's host answered within the few seconds that it gets."""
    return until(lambda: (told := lab.json("status"))["router"]["state"] and told, 60.0)


def lab_run(lab: SmallLab) -> str:
    """The router's newest run, below its gang's folder."""
    return "runs/" + (lab.folder / "router/gangs/router/current").read_text().strip()


def forget(lab: SmallLab, gang: str) -> None:
    """Remove this gang from the router, as after a restart that ignored the router."""
    (url,) = [one["service"]["url"] for one in lab.json("status")["gangs"] if one["name"] == gang]
    admin = {"Authorization": f"Bearer {admin_key(lab)}"}
    asked = urllib.request.Request(f"{lab.router_url}/workers", headers=admin)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        ids = {worker["url"]: worker["id"] for worker in json.load(answer)["workers"]}
    place = f"{lab.router_url}/workers/{urllib.parse.quote(ids[url], safe='')}"
    urllib.request.urlopen(urllib.request.Request(place, method="DELETE", headers=admin), timeout=10).close()
    until(lambda: url not in workers(lab), 20.0)


def admin_key(lab: SmallLab) -> str:
    """Only users who may read the router's files on its host can get it."""
    words = (lab.folder / "router/gangs/router/engine-secrets.args").read_text().splitlines()
    return words[words.index("--control-plane-api-keys") + 1].rpartition(":")[2]


def plan_for(lab: SmallLab, **env: str) -> None:
    """Change the inventory's environment, so that `up` computes another plan."""
    document = yaml.safe_load(lab.inventory.read_text())
    asked = document["all"]["vars"]["l40s_env"]
    asked.pop("STANDIN_FAIL", None)
    asked.update(env)
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.mark.turns(of="rolling: no request fails while gangs change")
def test_up_with_a_changed_plan_changes_gang_after_gang_and_no_request_fails(lab: SmallLab) -> None:
    before = {gang["plan_id"] for gang in lab.json("status")["gangs"]}
    plan_for(lab, NCCL_MIN_CTAS="8")
    with Load(lab.router_url, MODEL, clients=3, pause_s=0.1) as load:
        done = json.loads(lab.deploy("up", "--model", str(lab.profile), "--json").stdout)
    assert load.bad == []
    assert load.good > 100
    assert len(done["changed"]) == 3
    after = lab.json("status")["gangs"]
    assert [gang["state"] for gang in after] == ["ready"] * 3
    assert {gang["plan_id"] for gang in after} == {done["plan_id"]} and not before & {done["plan_id"]}
    assert len(workers(lab)) == 3


@pytest.mark.turns(of=DIES)
def test_the_first_gang_goes_back_when_it_fails_with_the_changed_plan(lab: SmallLab) -> None:
    before = lab.json("status")["gangs"]
    plan_for(lab, STANDIN_FAIL="rank=1,phase=weights,how=oom")
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
        ended = lab.deploy("up", "--model", str(lab.profile), code=None)
    plan_for(lab)
    assert ended.returncode == 5, ended.stderr
    assert "error: gang gang0: node0" in ended.stderr and "out of memory" in ended.stderr, ended.stderr
    assert f"gang0 is back on its previous plan {before[0]['plan_id']}; not changed: gang1, gang2" in ended.stderr
    assert load.bad == [] and load.good > 50
    after = lab.json("status")["gangs"]
    assert [(gang["state"], gang["plan_id"]) for gang in after] == [("ready", before[0]["plan_id"])] * 3
    assert [gang["run_id"] for gang in after[1:]] == [gang["run_id"] for gang in before[1:]]
    assert after[0]["run_id"] != before[0]["run_id"]
    assert len(workers(lab)) == 3


@pytest.mark.turns(of="rolling: no request fails while gangs change")
def test_maintenance_of_one_gang_that_loses_its_power_meanwhile_and_the_others_serve(lab: SmallLab) -> None:
    before = lab.json("status")["gangs"]
    lab_verb = " ".join([*L40S_DEPLOY, "lab"])
    cycle = lab.folder / "power-cycle"
    cycle.write_text(
        "set -e\n"
        f'{lab_verb} break "$L40S_NODE" power-off --name {lab.name}\n'
        f'{lab_verb} heal "$L40S_NODE" power-off --name {lab.name}\n'
    )
    forget(lab, "gang0")
    forget(lab, "gang2")
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
        lab.deploy("restart", "--maintenance", "gang1", "--run", f"sh {cycle}", "--reboots", "--timeout", "90")
    assert load.bad == [] and load.good > 50
    after = lab.json("status")["gangs"]
    assert [gang["state"] for gang in after] == ["ready"] * 3
    assert [was["run_id"] != now["run_id"] for was, now in zip(before, after, strict=True)] == [False, True, False]
    assert len(workers(lab)) == 3


@pytest.mark.turns(of=DIES)
@pytest.mark.parametrize("fault", [("kill-rank", "0"), ("power-off",)], ids=lambda fault: fault[0])
def test_of_a_gang_that_dies_only_the_requests_in_flight_fail(lab: SmallLab, fault: tuple[str, ...]) -> None:
    last, clients = lab.gang(1)["run_id"], 6
    with Load(lab.router_url, MODEL, clients=clients, pause_s=0.05) as load:
        until(lambda: load.good > 10 * clients, 60 * slack(), lambda: str(load.bad))
        lab.run("break", "node1", *fault)
        died = load.good
        until(lambda: load.good > died + 20 * clients, 120 * slack(), lambda: str(load.bad))
    assert len(load.bad) <= clients, load.bad
    if fault[0] == "power-off":
        lab.run("heal", "node1", *fault)
    lab.deploy("guard", "--once", "--golden-every", "0")
    assert lab.gang(1)["state"] == "ready" and lab.gang(1)["run_id"] != last
    assert len(workers(lab)) == 3


@pytest.mark.turns(of=DIES)
def test_it_ends_at_the_first_gang_that_does_not_come_back_and_the_rest_serves(lab: SmallLab) -> None:
    """The model is lost once the gang's turn has begun."""
    last = lab.gang(2)["run_id"]
    with Load(lab.router_url, MODEL, clients=2, pause_s=0.1) as load:
        running = lab.start("restart", "--rolling", "gang1", "gang2")
        assert running.stdout is not None
        next(line for line in running.stdout if "removing it from the router" in line)
        lab.on("node1", f"mv /workspace/{MODEL} /workspace/away")
        said = running.communicate(timeout=120 * slack())[0]
    assert running.returncode == 3, said
    assert "does not exist" in said and "not restarted: gang2" in said
    assert load.bad == [] and load.good > 50
    assert lab.gang(2)["run_id"] == last
    assert len(workers(lab)) == 2


def test_down_takes_gangs_out_before_they_stop(lab: SmallLab) -> None:
    lab.deploy("down", "gang1", "gang2")
    assert len(workers(lab)) == 1
    told = routed(lab)
    assert [gang["router"] for gang in told["gangs"]] == ["in", "out", "out"]
    assert told["router"]["healthy"] and [worker["gang"] for worker in told["router"]["workers"]] == ["gang0"]
    refused = lab.deploy("restart", "--rolling", code=2)
    assert "none would be left" in refused.stderr


@pytest.mark.turns(of="rolling: no request fails while gangs change")
def test_clients_come_by_tls_with_the_routers_key_and_a_new_key_restarts_no_gang(lab: SmallLab, tmp_path: Path) -> None:
    def private(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def complete(key: str) -> int:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        trusted.check_hostname = False
        body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 2}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        url = f"https://127.0.0.1:{lab.router_port}/v1/completions"
        try:
            asked = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(asked, timeout=20, context=trusted) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    lab.on("node1", f"[ ! -d /workspace/away ] || mv /workspace/away /workspace/{MODEL}")
    lab.serve()
    cert, key = certified_key("router.example")
    document = yaml.safe_load(lab.inventory.read_text())
    document["all"]["children"]["router"]["vars"] |= {
        "l40s_router_tls_cert": private("cert.pem", cert),
        "l40s_router_tls_key": private("key.pem", key),
        "l40s_api_key_file": private("client", "client-key-1"),
    }
    runs = [gang["run_id"] for gang in lab.json("status")["gangs"]]
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    assert len(workers(lab)) == 3, "it is asked as it was started"
    told = lab.deploy("router", "up").stderr
    assert "settings differ" in told and "`l40s-deploy router down`, then `l40s-deploy router up`" in told
    lab.deploy("router", "down")
    lab.deploy("router", "up")
    assert len(workers(lab)) == 3 and lab.json("router", "status")["url"].startswith("https://")
    assert (complete("client-key-1"), complete("another"), complete(admin_key(lab))) == (200, 401, 401)
    private("client", NEXT_KEY)
    assert "settings differ" in lab.deploy("router", "up").stderr
    lab.deploy("router", "down")
    lab.deploy("router", "up")
    assert (complete("client-key-1"), complete(NEXT_KEY)) == (401, 200)
    lab.deploy("restart", "--rolling", "gang0")
    after = routed(lab)
    assert after["router"]["state"] == "ready" and len(workers(lab)) == 3
    assert [gang["run_id"] for gang in after["gangs"]][1:] == runs[1:], after["gangs"]
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(NEXT_KEY.encode() in line or admin_key(lab).encode() in line for line in command_lines)


@pytest.mark.long
def test_no_request_fails_while_gangs_restart_over_lines_that_lose_and_delay(lab: SmallLab) -> None:
    """The controller's, the router's, and those between the two nodes of a gang."""
    lab.deploy("down", "--all")
    lab.deploy("router", "down")
    document = yaml.safe_load(lab.inventory.read_text())
    children = document["all"]["children"]
    for name in ("l40s_router_tls_cert", "l40s_router_tls_key", "l40s_api_key_file"):
        children["router"]["vars"].pop(name, None)
    gangs = children["gangs"]["children"]
    gangs["gang0"]["hosts"] |= gangs.pop("gang1")["hosts"]
    lab.inventory.write_text(yaml.safe_dump(document, sort_keys=False))
    lab.serve()
    faults = (("delay", "40"), ("one-way-loss", "10"))
    before = [gang["run_id"] for gang in lab.json("status")["gangs"]]
    for node in lab.hosts():
        for fault in faults:
            lab.run("break", node, *fault)
    with Load(lab.router_url, MODEL, clients=3, pause_s=0.1) as load:
        done = lab.deploy("restart", "--rolling")
    assert "restarted one after the other" in done.stdout
    assert load.bad == [] and load.good > 20
    after = routed(lab)["gangs"]
    assert [(gang["state"], len(gang["nodes"]), gang["router"]) for gang in after] == [
        ("ready", 2, "in"),
        ("ready", 1, "in"),
    ]
    assert not set(before) & {gang["run_id"] for gang in after}
