"""`init` over real SSH: keys recorded only with consent, sudo and networks tried, an inventory that works."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import SmallLab, small_lab

from orchestrator.loading.inventory import load_inventory

from .conftest import needs_root

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600), needs_root]


@dataclass(frozen=True)
class Newcomer:
    """A user with a key, an empty known_hosts and no inventory."""

    lab: SmallLab
    home: Path

    @property
    def words(self) -> list[str]:
        variables = self.lab.lab_inventory()["all"]["vars"]
        hosts = [f"{name}={address}" for name, address in self.lab.hosts().items()]
        return [*hosts, "--user", variables["ansible_user"], "--port", str(variables["ansible_port"]), "--key", "id"]

    @property
    def environment(self) -> dict[str, str]:
        ours = {name: value for name, value in self.lab.environment.items() if name != "L40S_INVENTORY"}
        return {**ours, "HOME": str(self.home), "TERM": "xterm-256color"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run([*L40S_DEPLOY, *words])

    def on_a_terminal(self, answers: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run(["script", "-qec", shlex.join([*L40S_DEPLOY, *words]), "/dev/null"], answers)

    def _run(self, words: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self.environment,
            cwd=self.home,
            input=typed,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with small_lab("init", level=2) as lab:
        if lab.json("lab", "status", "--name", lab.name)["level"] != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        home = lab.folder / "home"
        home.mkdir()
        shutil.copy(lab.lab_inventory()["all"]["vars"]["ansible_ssh_private_key_file"], home / "id")
        yield Newcomer(lab, home)


def test_from_hosts_to_an_inventory_that_works(newcomer: Newcomer) -> None:
    inventory, known = newcomer.home / "inventory" / "hosts.yml", newcomer.home / ".ssh" / "known_hosts"

    nobody_to_ask = newcomer.run("init", *newcomer.words)
    assert nobody_to_ask.returncode == 4, nobody_to_ask.stderr
    assert "node1: host key ssh-ed25519 SHA256:" in nobody_to_ask.stderr
    assert "--accept-host-keys" in nobody_to_ask.stderr and not inventory.exists() and not known.exists()

    refused = newcomer.on_a_terminal("no\n", "init", *newcomer.words)
    assert refused.returncode == 4 and not inventory.exists() and not known.exists()

    hosts, options = newcomer.words[:2], newcomer.words[2:]
    made = newcomer.on_a_terminal(f"{' '.join(hosts)}\nyes\n", "init", *options)
    assert made.returncode in (0, 3), made.stdout
    assert "node0: logged in as operator; sudo works" in made.stdout and "network: " in made.stdout
    assert "l40s-deploy prepare" in made.stdout.strip().splitlines()[-1]
    nodes = list(load_inventory(inventory).nodes)
    assert [node.name for node in nodes] == ["node0", "node1"]
    assert [node.reach.host for node in nodes] == list(newcomer.lab.hosts().values())
    assert all(node.address and node.gpus == 2 and node.reach.become for node in nodes)
    assert len(known.read_text().splitlines()) == 2

    status = newcomer.run("status")
    assert status.returncode == 0, status.stderr
    before = inventory.read_text()
    again = newcomer.run("init", *newcomer.words)
    assert again.returncode == 2 and "never overwrites" in again.stderr and inventory.read_text() == before


def test_a_host_that_is_not_there_is_named_and_nothing_is_written(newcomer: Newcomer) -> None:
    done = newcomer.run(
        "init", "--out", "other.yml", "--accept-host-keys", *newcomer.words[:1], "away=127.0.0.1", "--port", "1"
    )
    assert done.returncode == 4 and "away" in done.stderr
    assert not (newcomer.home / "other.yml").exists()
