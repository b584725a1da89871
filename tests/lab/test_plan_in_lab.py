"""`plan` against real nodes: the plan is based on what the lab's files show. And inventories with which `up` reaches no
node, or one that can't take part: each has its own message and exit code, and starts nothing."""

from __future__ import annotations

import json
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.small_lab import RunningLab
from tests.support.waiting import until

from .conftest import SEEN, needs_root

pytestmark = [pytest.mark.lab, needs_root, SEEN]

MODEL = ("--model", "DeepSeek-V3-0324-Block64x64")


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab]) -> RunningLab:
    made = labs("plans")
    made.run("up")
    return made


def plan(lab: RunningLab, *words: str) -> str:
    return lab.deploy("plan", *words).stdout


def test_the_articles_launch_on_the_articles_cluster(lab: RunningLab) -> None:
    document: dict[str, Any] = json.loads(plan(lab, *MODEL, "--stack", "sglang-0.4.4-l40s", "--json"))
    leader = lab.hosts()["node0"]
    assert [(node["name"], node["node_rank"]) for node in document["nodes"]] == [(f"node{n}", n) for n in range(4)]
    for node in document["nodes"]:
        assert node["env"]["NCCL_DEBUG"] == "INFO"
        assert node["env"]["NCCL_IB_GID_INDEX"] == "3"
        assert node["env"]["NCCL_SOCKET_IFNAME"] == f"={node['env']['GLOO_SOCKET_IFNAME']}"
        assert node["env"]["NCCL_IB_HCA"].count(":1") == 4
        assert f"--tp-size 32 --dist-init-addr {leader}:5000 --nnodes 4" in " ".join(node["argv"])
        assert set(node["env"]) <= set(node["sources"])
    assert document["memory"]["weights"] > 20 << 30


def test_the_same_facts_give_the_same_plan(lab: RunningLab) -> None:
    first, second = (json.loads(plan(lab, *MODEL, "--json")) for _ in range(2))
    assert first == second


@pytest.mark.turns(of="plans: 32 ranks start as it was planned")
def test_a_plan_file_is_carried_out_and_its_api_key_shows_nowhere(lab: RunningLab, tmp_path: Path) -> None:
    key = secrets.token_hex(24)
    lab = keyed(lab, tmp_path, key)
    words = (*MODEL, "--stack", "sglang-0.4.4-l40s")
    file = tmp_path / "plan.json"
    lab.deploy("plan", *words, "--out", str(file))
    try:
        up = json.loads(lab.deploy("up", "--plan", str(file), "--json").stdout)
        shown = [file.read_text(), lab.deploy("logs", "--lines", "5000").stdout, json.dumps(up)]
        shown += [lab.ssh(name, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '") for name in lab.hosts()]
        assert not any(key in text for text in shown)
        assert "launch_with_secrets.py" in shown[3]
        assert lab.ssh("node0", "stat -c %a /var/lib/l40s-deploy/gangs/gang0/engine-secrets.args").strip() == "600"
        assert "engine-secrets" not in lab.ssh("node1", "ls /var/lib/l40s-deploy/gangs/gang0")
        url = up["gangs"][0]["service"]["url"] + "/v1/models"
        assert [status(url, header) for header in (None, f"Bearer {key}")] == [401, 200]
        same = lab.json("plan", *words, "--diff", code=0)["gangs"][0]
        assert (same["state"], same["changes"], same["restart"]) == ("ready", [], False)
        assert lab.json("plan", "--diff", code=0)["gangs"] == [same]
        more = lab.deploy("plan", *words, "--diff", "--json", "--", "--enable-cache-report").stdout
        changed = json.loads(more)["gangs"][0]
        assert changed["restart"]
        assert {change["name"] for change in changed["changes"]} == {"--enable-cache-report"}
        again = lab.json("restart", "--now", code=0)  # whoever restarts need not have the key
        assert again["gangs"][0]["run_id"] != up["gangs"][0]["run_id"] and key not in json.dumps(again)
        assert [status(url, header) for header in (None, f"Bearer {key}")] == [401, 200]
    finally:
        lab.deploy("down")


@pytest.mark.turns(of="plans: 32 ranks start as it was planned")
def test_the_second_model_starts_on_the_second_stack_and_weighs_one_byte_a_parameter(
    lab: RunningLab, tmp_path: Path
) -> None:
    """Two bytes per weight would be 42 GiB on each GPU, with no room for the KV cache."""
    lab = keyed(lab, tmp_path, secrets.token_hex(24))
    words = ("--model", "DeepSeek-R1-Channel-INT8", "--stack", "sglang-0.5.23")
    try:
        (gang,) = lab.json("up", *words, code=0)["gangs"]
        assert (gang["state"], gang["model"]) == ("ready", "DeepSeek-R1-Channel-INT8")
        until(lambda: all(used_gib(lab)), 30, "the driver's word on every rank")
        used = used_gib(lab)
        assert len(used) == 32 and all(21.0 < each < 44.0 for each in used), used
        weighed = re.findall(r"type=\S+, .*mem usage=([\d.]+) GB", lab.deploy("logs", "--lines", "5000").stdout)
        assert weighed and all(20.0 < float(each) < 23.0 for each in weighed), weighed
    finally:
        lab.deploy("down")


def used_gib(lab: RunningLab) -> list[float]:
    """Of each rank, what the driver says that its process holds; 0 before its node has looked."""
    (gang,) = lab.json("status")["gangs"]
    return [rank["gpu_memory_bytes"] / (1 << 30) for node in gang["nodes"] for rank in node["ranks"]]


def keyed(lab: RunningLab, folder: Path, key: str) -> RunningLab:
    """The lab with an API key in a file, and an engine that starts quickly."""
    file = folder / "key"
    file.touch(0o600)
    file.write_text(key)
    document = lab.lab_inventory()
    document["all"]["vars"] |= {"l40s_api_key_file": str(file), "l40s_env": {"STANDIN_SPEED": "0.1"}}
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump(document))
    return replace(lab, inventory=inventory)


def status(url: str, authorization: str | None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": authorization} if authorization else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def test_a_script_that_a_human_can_read(lab: RunningLab) -> None:
    script = plan(lab, *MODEL, "--show", "script", "--node", "node3")
    assert script.startswith("#!/bin/sh\n")
    assert "--node-rank 3" in script


Variables = dict[str, Any]


def known(common: Variables, file: Path, text: str) -> None:
    file.write_text(text)
    common["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={file}"


def unknown_key(_: RunningLab, common: Variables, __: Variables, folder: Path) -> None:
    known(common, folder / "known_hosts", "")


def another_key(lab: RunningLab, common: Variables, _: Variables, folder: Path) -> None:
    lines = [line.split(" ", 1) for line in (lab.directory / "known_hosts").read_text().splitlines()]
    swapped = [f"{name} {lines[place - 1][1]}\n" for place, (name, _) in enumerate(lines)]
    known(common, folder / "known_hosts", "".join(swapped))


def no_python(_: RunningLab, __: Variables, hosts: Variables, ___: Path) -> None:
    hosts["node1"]["ansible_python_interpreter"] = "/opt/none/python3"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (unknown_key, 4, ["host key", "ssh-keyscan"]),
        (another_key, 4, ["ssh-keygen -R"]),
        (no_python, 3, ["/opt/none/python3"]),
    ],
)
def test_a_wrong_inventory(
    lab: RunningLab,
    tmp_path: Path,
    change: Callable[[RunningLab, Variables, Variables, Path], None],
    code: int,
    words: list[str],
) -> None:
    document = lab.lab_inventory()
    change(lab, document["all"]["vars"], document["all"]["children"]["gangs"]["children"]["gang0"]["hosts"], tmp_path)
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump(document))
    said = replace(lab, inventory=inventory).deploy("up", *MODEL, code=code).stderr
    assert "Traceback" not in said and all(word in said for word in words), said
    assert not lab.engine_processes()
