"""`prepare` on nodes that boot systemd and reach no network, as a user whose sudo asks for a password.

Everything comes from a bundle, the Debian packages too. All that it makes is present, its one sudo rule is enough for
`up`, and it can undo everything; by turns, a look before changes nothing, a second run neither, and others' files stay.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import slack, until
from tests.support.wheels import small_stack, wheel

from .conftest import PREPARED, needs_root

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1500),
    needs_root,
    PREPARED,
]

NODES = ("node0",)
"""What a second one would show is that ansible takes several: tests/lab/test_viewers.py."""
HOST_SETTING = Path("/proc/sys/kernel/numa_balancing")
PASSWORD = "let me in"
ASKED = "operator ALL=(ALL:ALL) ALL\n"
PACKAGES = ("rsync", "libnuma1")
"""Few and small; libnuma1 is installed already. Every stack brings the interpreter's own."""
LIST_ALL = (
    "find /etc /opt /var/lib /usr/local /workspace -xdev \\( -path /var/lib/dpkg -o -path /var/lib/apt"
    " -o -path /var/lib/systemd \\) -prune -o -not -name '*.pyc' -printf '%p %y %m %u %l\\n' | sort;"
    " cat /etc/passwd /etc/group; cat /proc/sys/kernel/numa_balancing;"
    " dpkg-query -W -f '${Package} ${db:Status-Status}\\n'"
)


@dataclass(frozen=True)
class Nodes:
    """A lab with an inventory of our own, and a bundle."""

    lab: SmallLab
    stack: Path
    bundle: Path

    @property
    def inventory(self) -> Path:
        """The inventory with one more node, which is unreachable."""
        return self.lab.folder / "prepare.yml"

    def root(self, node: str, command: str) -> str:
        """On the node's console, since the operator's sudo is under test here."""
        done = self.lab.deploy("lab", "exec", "--name", self.lab.name, node, "--", "sh", "-c", command)
        return done.stdout

    def prepare(self, *words: str, code: int = 0, password: str = PASSWORD) -> dict[str, dict[str, Any]]:
        stack = () if "--remove" in words else ("--stack", str(self.stack), "--bundle", str(self.bundle))
        ask = ("--ask-become-pass",) if password else ()
        done = subprocess.run(
            [*L40S_DEPLOY, "prepare", "-i", str(self.inventory), *stack, *ask, *words, "--json"],
            env=self.lab.environment,
            cwd=self.lab.folder,
            input=password + "\n",
            start_new_session=True,  # no terminal to ask at
            capture_output=True,
            text=True,
            timeout=240 * slack(),
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with small_lab("prepare", nodes=len(NODES), level=2) as lab:
        if lab.running_level() != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        become = {"ansible_become": True, "ansible_become_user": "l40s"}
        packages = {"system_packages_wanted": list(PACKAGES)}
        lab.write_inventory(vars={**become, **packages})
        document = yaml.safe_load(lab.inventory.read_text())
        key = Path(document["all"]["vars"]["ansible_ssh_private_key_file"])
        document["all"]["vars"]["ansible_ssh_private_key_file"] = str(key.relative_to(lab.folder))
        document["all"]["children"]["gangs"]["children"]["gang0"]["hosts"]["away"] = {
            "ansible_host": "127.0.0.1",
            "ansible_port": 1,
        }
        (lab.folder / "prepare.yml").write_text(yaml.safe_dump(document, sort_keys=False))
        made = Nodes(lab, *_bundle(lab.folder))
        for name in NODES:
            made.root(name, f"echo 'operator:{PASSWORD}' | chpasswd; echo '{ASKED}' >/etc/sudoers.d/operator")
        yield made


def _bundle(folder: Path) -> tuple[Path, Path]:
    show = 'import sys; print("%d.%d" % sys.version_info[:2])'
    python = subprocess.run(["/usr/bin/python3", "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    stack, bundle = small_stack(folder / "stack", python), folder / "small.bundle"
    wheel(stack.parent / "wheels", "nvidia-cuda-nvcc", "13.0.88", {"nvidia/cu13/bin/nvcc": "", _CUDART: ""})
    with stack.with_suffix(".lock").open("a") as lock:
        lock.write("nvidia-cuda-nvcc==13.0.88\n")
    words = ("stack", "build", str(stack), "--out", str(bundle), "--debian", ",".join(PACKAGES))
    subprocess.run(
        [*L40S_DEPLOY, *words, "--find-links", str(stack.parent / "wheels")],
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull},
        check=True,
        timeout=120 * slack(),
    )
    return stack, bundle


@pytest.mark.turns
@pytest.mark.parametrize("also", ["a look before", "a second run", "files of others"])
def test_made_enough_for_up_and_taken_back(nodes: Nodes, also: str) -> None:
    setting = HOST_SETTING.read_text()
    before = {name: nodes.root(name, LIST_ALL) for name in NODES}

    refused = nodes.prepare("--node", "node0", code=3, password="")["node0"]["error"]
    assert "password" in refused["what"] and "--ask-become-pass" in refused["fix"]
    if also == "a look before":
        looked = nodes.prepare("--check", "--node", "node0")
        assert nodes.root("node0", LIST_ALL) == before["node0"]
        assert "+l40s - memlock " in _diffs(looked["node0"])

    made = nodes.prepare(code=4)
    assert made["away"]["result"] is None
    assert "Connection refused" in made["away"]["error"]["what"]
    for name in NODES:
        assert made[name]["error"] is None
        roles = {change["role"] for change in made[name]["changes"]}
        assert roles >= {"system_packages", "engine_user", "limits", "sudo_rule", "engine_env"}
        assert nodes.root(name, _VERSIONS).split() == ["1.0", "2.0+cpu"]
        assert nodes.root(name, "realpath /usr/local/cuda/lib64/libcudart.so").strip().endswith(_CUDART)
        assert nodes.root(name, "rsync --version | head -n 1; id -un l40s").startswith("rsync")
    if also == "a second run":
        again = nodes.prepare("--node", NODES[0])
        assert again[NODES[0]]["result"]["changed"] == 0

    _up_by_the_narrow_rule_alone(nodes)

    if also == "files of others":
        _remove_leaves_and_says_what_somebody_put_beside_ours(nodes)
    else:
        nodes.prepare("--remove", *_here())
    after = {name: nodes.root(name, LIST_ALL) for name in NODES}
    assert {name: sorted(set(after[name].splitlines()) ^ set(before[name].splitlines())) for name in NODES} == {
        name: [] for name in NODES
    }
    assert HOST_SETTING.read_text() == setting, "a node's settings are its own"


def _up_by_the_narrow_rule_alone(nodes: Nodes) -> None:
    for name in NODES:
        nodes.root(name, "rm /etc/sudoers.d/operator; visudo -cq")
        sudo = "runuser -u operator -- sudo -k -n"
        assert nodes.root(name, f"{sudo} -u l40s -- /bin/sh -c 'id -un'") == "l40s\n"
        assert nodes.root(name, f"{sudo} true 2>/dev/null || echo no") == "no\n"
    nodes.lab.serve()
    assert nodes.lab.gang()["state"] == "ready"
    for name in NODES:
        users = nodes.root(name, "ps -o user= -p $(pgrep -d, -f '[s]glang::|[a]gent.pyz') | sort -u")
        assert users.split() == ["l40s"]
    nodes.lab.deploy("down")
    # a verb's own process ends with its connection, a moment after `down`
    until(lambda: not any(nodes.root(name, "pgrep -u l40s || true") for name in NODES), 20, "no process of l40s left")
    for name in NODES:
        nodes.root(name, f"umask 226; echo '{ASKED}' >/etc/sudoers.d/operator")


def _remove_leaves_and_says_what_somebody_put_beside_ours(nodes: Nodes) -> None:
    """Models in the engine user's home, and a line in our limits file."""
    limits = "/etc/security/limits.d/l40s.conf"
    nodes.root(
        "node0",
        "mkdir -p /var/lib/l40s/models/M && echo weights >/var/lib/l40s/models/M/a && "
        f"echo 'alice - nofile 4096' >>{limits}",
    )
    done = nodes.prepare("--remove", *_here())
    said = json.dumps(done["node0"])
    assert nodes.root("node0", "cat /var/lib/l40s/models/M/a") == "weights\n"
    assert nodes.root("node0", f"cat {limits}") == "alice - nofile 4096\n"
    assert "the user l40s stays" in said
    assert "models" in said
    assert "lines that somebody has added" in said
    nodes.root("node0", f"userdel -r l40s; rm {limits}")


def _here() -> tuple[str, ...]:
    return tuple(word for name in NODES for word in ("--node", name))


def _diffs(node: dict[str, Any]) -> str:
    return "\n".join(change["diff"] for change in node["changes"])


_CUDART = "nvidia/cu13/lib/libcudart.so.13"
_VERSIONS = (
    "runuser -u l40s -- /opt/l40s/venvs/small/bin/python3 -c "
    "'import l40s_probe_one as one, l40s_probe_two as two; print(one.VERSION, two.VERSION)'"
)
