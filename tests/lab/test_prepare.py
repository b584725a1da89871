"""`prepare` on nodes that reach no network: what it makes is there, the second time is quiet, and it takes all back."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.wheels import small_stack

from .conftest import L40S_DEPLOY, RunningLab, needs_root

pytestmark = [pytest.mark.lab, needs_root]

NODES = ("node0", "node1")
HOST_SETTING = Path("/proc/sys/kernel/numa_balancing")
LIST_ALL = (
    "find /etc /opt /var/lib /usr/local /workspace -not -name '*.pyc' -printf '%p %y %m %u %l\\n' | sort;"
    " cat /etc/passwd /etc/group; cat /proc/sys/kernel/numa_balancing"
)


@dataclass(frozen=True)
class Prepared:
    """A lab with an inventory of our own, and a bundle."""

    lab: RunningLab
    inventory: Path
    stack: Path
    bundle: Path

    def deploy(self, *words: str, inventory: Path | None = None, code: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [*L40S_DEPLOY, *words, "-i", str(inventory or self.inventory), "--json"],
            env=self.lab.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def prepare(self, *words: str, inventory: Path | None = None, code: int = 0) -> dict[str, dict[str, Any]]:
        stack = () if "--remove" in words else ("--stack", str(self.stack), "--bundle", str(self.bundle))
        document = self.deploy("prepare", *stack, *words, inventory=inventory, code=code)
        return {node["name"]: node for node in document["nodes"]}

    def variant(self, name: str, **variables: Any) -> Path:
        """The inventory with other variables for all."""
        document = yaml.safe_load(self.inventory.read_text())
        document["all"]["vars"].update(variables)
        path = self.inventory.with_name(f"{name}.yml")
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path


@pytest.fixture(scope="module")
def nodes(labs: Callable[[str], RunningLab], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    lab = labs("prepare")
    lab.run("up", "--nodes", "2")
    folder = tmp_path_factory.mktemp("prepare")
    document = lab.inventory()
    # what is missing would have to come from a package source, and these nodes reach none
    document["all"]["vars"] |= {"system_packages_wanted": ["gcc", "libc6-dev"], "l40s_state_dir": "/srv/l40s-state"}
    gang = document["all"]["children"]["gangs"]["children"]["gang0"]["hosts"]
    gang["away"] = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    (folder / "hosts.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    python = subprocess.run(
        ["/usr/bin/python3", "-c", 'import sys; print("%d.%d" % sys.version_info[:2])'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    stack = small_stack(folder / "stack", python)
    bundle = folder / "small.bundle"
    subprocess.run(
        [
            *L40S_DEPLOY,
            "stack",
            "build",
            str(stack),
            "--out",
            str(bundle),
            "--find-links",
            str(stack.parent / "wheels"),
        ],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull},
        check=True,
        timeout=60,
    )
    yield Prepared(lab, folder / "hosts.yml", stack, bundle)


def test_made_found_again_and_taken_back(nodes: Prepared) -> None:
    setting = HOST_SETTING.read_text()
    before = {name: nodes.lab.ssh(name, LIST_ALL) for name in NODES}

    looked = nodes.prepare("--check", *_here())
    assert {name: nodes.lab.ssh(name, LIST_ALL) for name in NODES} == before
    assert all("+root - memlock unlimited" in _diffs(looked[name]) for name in NODES)

    made = nodes.prepare(code=4)
    assert made["away"]["result"] is None
    assert "Connection refused" in made["away"]["error"]["what"]
    for name in NODES:
        assert made[name]["error"] is None
        assert {change["role"] for change in made[name]["changes"]} >= {"engine_user", "limits", "engine_env"}
        assert nodes.lab.ssh(name, _VERSIONS).split() == ["1.0", "2.0+cpu"]
        assert nodes.lab.ssh(name, "stat -c '%U %a' /srv/l40s-state; id -un l40s").split() == ["root", "711", "l40s"]

    again = nodes.prepare(*_here())
    assert {name: again[name]["result"]["changed"] for name in NODES} == dict.fromkeys(NODES, 0)

    nodes.prepare("--remove", *_here())
    assert {name: nodes.lab.ssh(name, LIST_ALL) for name in NODES} == before
    assert HOST_SETTING.read_text() == setting, "a node's settings are its own"


def test_sudo_that_does_not_let_us_is_told_and_the_rule_lets_become_one_user(nodes: Prepared) -> None:
    nodes.lab.ssh("node0", "useradd --create-home --shell /bin/sh --password '*' deploy")
    here = ("--node", "node0", "--tags", "engine_user,sudo_rule")
    user = nodes.variant("user", ansible_user="deploy")
    refused = nodes.prepare(*here, inventory=user, code=3)["node0"]["error"]
    assert (refused["where"], "this needs root" in refused["what"]) == ("node0", True)
    become = nodes.variant("become", ansible_user="deploy", ansible_become=True, ansible_become_user="l40s")
    refused = nodes.prepare(*here, inventory=become, code=3)["node0"]["error"]
    assert "password" in refused["what"]
    assert "--ask-become-pass" in refused["fix"]

    nodes.lab.ssh("node0", "echo 'deploy ALL=(root) NOPASSWD: ALL' >/etc/sudoers.d/admin")
    nodes.prepare(*here, inventory=become)
    nodes.lab.ssh("node0", "rm /etc/sudoers.d/admin; visudo -cq")
    allowed = nodes.lab.ssh("node0", "runuser -u deploy -- sudo -n -u l40s -- /bin/sh -c 'id -un'")
    assert allowed.strip() == "l40s"
    assert nodes.lab.ssh("node0", "runuser -u deploy -- sudo -n true 2>/dev/null || echo no").strip() == "no"
    states = {
        node["name"]: node["state"] for node in nodes.deploy("status", inventory=become, code=4)["gangs"][0]["nodes"]
    }
    assert states["node0"] == "absent", "the rule is enough for the node application"


def _here() -> tuple[str, ...]:
    return tuple(word for name in NODES for word in ("--node", name))


def _diffs(node: dict[str, Any]) -> str:
    return "\n".join(change["diff"] for change in node["changes"])


_VERSIONS = (
    "/opt/l40s/venvs/small/bin/python3 -c "
    "'import l40s_probe_one as one, l40s_probe_two as two; print(one.VERSION, two.VERSION)'"
)
