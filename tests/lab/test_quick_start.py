"""README's quick start on four bare nodes that boot systemd: its commands, in its order; none of them may fail.

Replaced: the names, keys and addresses of the hosts, and the stack, which is the lab's. The nodes reach no network: the
packages and the checkpoint are those that the lab brings.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import ENVIRONMENT, SmallLab, small_lab
from tests.support.waiting import slack

from .conftest import needs_root

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1800), needs_root]

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICK_START = README.partition("## Quick start")[2].partition("\nAfterwards:")[0]


def typed() -> list[str]:
    """Every command of the numbered steps, in a block or in the text; of the two forms of `init`, the one that asks
    nothing."""
    found = re.findall(r"(?:^ {7}|`)(l40s-deploy [^`\n]+)", QUICK_START, re.MULTILINE)
    return [words for words in found if words != "l40s-deploy init"]


@dataclass(frozen=True)
class Newcomer:
    """A user with this README, a key, and four hosts."""

    lab: SmallLab
    home: Path

    @property
    def inventory(self) -> Path:
        return self.home / "inventory" / "hosts.yml"

    def words(self, command: str) -> list[str]:
        """As it is typed here."""
        variables = self.lab.lab_inventory()["all"]["vars"]
        hosts = " ".join(f"l40s-{number}={address}" for number, address in enumerate(self.lab.hosts().values()))
        reach = f"--port {variables['ansible_port']} --key id --stack {variables['l40s_stack']}"
        user = f"--user {variables['ansible_user']}"
        return shlex.split(command.replace("'l40s-[0:3]' --user deploy", f"{hosts} {user} {reach}"))[1:]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in self.lab.environment.items() if name != "L40S_INVENTORY"}
        return subprocess.run(
            [*L40S_DEPLOY, *self.words(command)],
            env={**ours, "HOME": str(self.home)},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=600 * slack(),
            check=False,
        )

    def settle(self) -> None:
        """The inventory that `init` wrote, with this lab's settings: short phases, our known_hosts."""
        document = yaml.safe_load(self.inventory.read_text())
        variables = self.lab.lab_inventory()["all"]["vars"]
        document["gangs"]["vars"] |= {
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.home}/.ssh/known_hosts",
            "l40s_env": dict(ENVIRONMENT),
            **{name: value for name, value in variables.items() if name == "l40s_accept"},
        }
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with small_lab("quickstart", level=2, nodes=4, gpus=8, engine="none") as lab:
        home = lab.folder / "home"
        home.mkdir()
        shutil.copy(lab.lab_inventory()["all"]["vars"]["ansible_ssh_private_key_file"], home / "id")
        yield Newcomer(lab, home)


def test_from_four_bare_nodes_to_ready_as_the_readme_says_it(newcomer: Newcomer) -> None:
    commands = typed()
    verbs = [" ".join(words.split()[1 : 3 if " checkpoint " in words else 2]) for words in commands]
    assert verbs == [
        *("init", "doctor", "prepare"),
        *("checkpoint download", "checkpoint reblock", "checkpoint push"),
        *("plan", "up"),
    ]
    for command in commands:
        done = newcomer.run(command)
        print(command, done.returncode, done.stdout[-1500:], done.stderr[-1500:], sep="\n")
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        if " init " in command:
            newcomer.settle()
    (gang,) = json.loads(newcomer.run("l40s-deploy status --json").stdout)["gangs"]
    assert gang["state"] == "ready" and gang["model"] == "DeepSeek-V3-0324-Block64x64"
    newcomer.run("l40s-deploy down")
