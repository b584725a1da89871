"""Labs for the tests: own names, own directory, always removed afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import preloaded
from tests.support.preloaded import L40S_DEPLOY
from tests.support.router import NotInstalled, router_environment, router_group
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import slack


@dataclass(frozen=True)
class RunningLab:
    """One lab as an operator has it: its name, its directory, and commands."""

    name: str
    root: Path

    @property
    def directory(self) -> Path:
        return self.root / self.name

    def inventory(self) -> dict[str, Any]:
        document: dict[str, Any] = yaml.safe_load((self.directory / "inventory.yml").read_text())
        return document

    def hosts(self) -> dict[str, dict[str, Any]]:
        gangs = self.inventory()["all"]["children"]["gangs"]["children"]
        return {name: facts for gang in gangs.values() for name, facts in gang["hosts"].items()}

    def run(self, *words: str, check: bool = True, deadline_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy lab WORDS --name NAME`, at level 1 unless WORDS say otherwise, whatever is cached here.

        deadline_s: on an idle machine.
        """
        if words[:1] == ("up",) and "--level" not in words:
            words = (*words, "--level", "1")
        done = preloaded.run(("lab", *words, "--name", self.name), self.environment(), deadline_s * slack())
        assert done.returncode == 0 or not check, done.stderr
        return done

    def deploy(
        self, *words: str, code: int | None = 0, inventory: Path | None = None, deadline_s: float = 90.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy WORDS` on the lab's cluster, or with another inventory. code: the wanted one; None: any"""
        end = words.index("--") if "--" in words else len(words)
        words = (*words[:end], "-i", str(inventory or self.directory / "inventory.yml"), *words[end:])
        done = preloaded.run(words, self.environment(), deadline_s * slack())
        assert code in (None, done.returncode), f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def console(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `l40s-deploy lab WORDS` where the lab's name must come early; with any exit code."""
        return subprocess.run(
            [*L40S_DEPLOY, "lab", words[0], "--name", self.name, *words[1:]],
            env=self.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60 * slack(),
            check=False,
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "L40S_LAB_ROOT": str(self.root)}

    def level(self) -> int:
        level: int = json.loads(self.run("status", "--json").stdout)["level"]
        return level

    def ssh(self, node: str, command: str, stdin: bytes = b"", *, user: str = "") -> str:
        """Run a command on a node through OpenSSH, as in the inventory, or as another user."""
        variables = self.inventory()["all"]["vars"]
        done = subprocess.run(
            [
                "ssh",
                *variables["ansible_ssh_common_args"].split(),
                *("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-F", "none"),
                *("-i", variables["ansible_ssh_private_key_file"], "-p", str(variables["ansible_port"])),
                f"{user or variables['ansible_user']}@{self.hosts()[node]['ansible_host']}",
                command,
            ],
            input=stdin,
            capture_output=True,
            timeout=30 * slack(),
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="emulated nodes need root")


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunningLab]]:
    """Makes lab handles; takes down every lab of a test file at the file's end."""
    made: list[RunningLab] = []

    def make(name: str) -> RunningLab:
        lab = RunningLab(name, tmp_path_factory.mktemp("labs"))
        made.append(lab)
        return lab

    yield make
    for lab in made:
        lab.run("down")


@contextmanager
def routed_lab(name: str, port: int, **shape: Any) -> Iterator[SmallLab]:
    """A lab with the router on this machine, which is taken down first; skips the test where it can't be installed."""
    try:
        environment = router_environment()
    except NotInstalled as why:
        pytest.skip(str(why))
    with small_lab(name, **shape) as made:
        made.write_inventory(router=router_group(environment, made.folder / "router", port))
        try:
            yield made
        finally:
            made.deploy("router", "down", check=False)
