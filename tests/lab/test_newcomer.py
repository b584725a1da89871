"""A newcomer, over real SSH: `init` (keys recorded only with consent, sudo and networks tried, a working inventory),
and README's quick start on four bare nodes that boot systemd: its commands, in its order, then those that the tutorial
has beyond them; none of them may fail.

Replaced in the quick start: the names, keys and addresses of the hosts, and the stack, which is the lab's. The nodes
reach no network: the packages and the checkpoint are those that the lab brings.
"""

from __future__ import annotations

import json
import os
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
from tests.unit.cli.test_documented_commands import lines_of

from orchestrator.loading.inventory import load_inventory

from .conftest import needs_root

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800), needs_root]

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICK_START = README.partition("## Quick start")[2].partition("\nAfterwards:")[0]


TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
LEFT_OUT = ("--nettest", "--install")
"""Of the tutorial's commands: torch is needed (`tests/engine/test_nettest.py`), and a unit of systemd is written here
(`tests/unit/gang/commands/test_guard.py`, `tests/unit/cli/test_named_gangs.py`)."""


def learnt(played: list[str]) -> list[str]:
    """The tutorial's commands that were not played yet and need nothing that is not here."""
    told = re.findall(r"^ {4}(l40s-deploy .+?)(?: +#.*)?$", TUTORIAL, re.MULTILINE)
    wanted = [words for words in told if not any(option in words for option in LEFT_OUT)]
    return [words for words in wanted if words not in played and " init " not in words]


def typed() -> list[str]:
    """Every command of the quick start's numbered steps, in a block or in the text; of the two forms of `init`, the one
    that asks nothing."""
    found = re.findall(r"(?:^ {7}|`)(l40s-deploy [^`\n]+)", QUICK_START, re.MULTILINE)
    return [words for words in found if words != "l40s-deploy init"]


ELSEWHERE = {
    "l40s-deploy --help": "tests/unit/cli/test_help.py",
    "l40s-deploy down --all": "tests/lab/test_rolling_restart.py",
    "l40s-deploy doctor --example articles": "tests/unit/gang/commands/test_doctor.py",
    "nvidia-smi topo -m | l40s-deploy doctor --from -": "tests/unit/doctor/commands/test_discover.py",
    "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64": "tests/unit/gang/commands/test_plan.py",
    "l40s-deploy up --model DeepSeek-V3-0324-Block64x64": "tests/lab/test_gang_in_lab.py",
    "l40s-deploy why --log FILE": "tests/unit/gang/commands/test_why.py",
    "l40s-deploy status --watch": "tests/unit/gang/commands/test_watching.py",
    "l40s-deploy guard --install": "tests/unit/gang/commands/test_guard.py",
    "l40s-deploy exporter --install": "tests/unit/cli/test_named_gangs.py",
    "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --nettest": "tests/engine/test_nettest.py",
}
"""Commands of README and tutorial that need what is not here, or do not end, and where they are played."""


def shortened(words: str) -> str:
    """A command without a remark, with single blanks."""
    return " ".join(words.partition(" #")[0].split())


def test_each_command_of_readme_and_tutorial_is_played_here_or_elsewhere() -> None:
    advised = {shortened(words) for page in (README, TUTORIAL) for words in lines_of(page)} - {"l40s-deploy init"}
    here = {shortened(words) for words in (*typed(), *learnt(typed()))}
    assert advised - here == ELSEWHERE.keys()
    assert [file for file in ELSEWHERE.values() if not (Path(__file__).parents[2] / file).is_file()] == []


@dataclass(frozen=True)
class Newcomer:
    """A user with a key, hosts, an empty known_hosts and no inventory."""

    lab: SmallLab
    home: Path

    @property
    def inventory(self) -> Path:
        return self.home / "inventory" / "hosts.yml"

    def words(self, prefix: str) -> list[str]:
        """The hosts, by this name and their number, and how they are reached."""
        variables = self.lab.lab_inventory()["all"]["vars"]
        hosts = [f"{prefix}{number}={address}" for number, address in enumerate(self.lab.hosts().values())]
        return [*hosts, "--user", variables["ansible_user"], "--port", str(variables["ansible_port"]), "--key", "id"]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run([*L40S_DEPLOY, *words])

    def on_a_terminal(self, answers: str, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run(["script", "-qec", shlex.join([*L40S_DEPLOY, *words]), "/dev/null"], answers)

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """A command of README, with the hosts that there are here."""
        stack = self.lab.lab_inventory()["all"]["vars"]["l40s_stack"]
        here = shlex.join([*self.words("l40s-"), "--stack", stack])
        words = shlex.split(command.replace("'l40s-[0:3]' --user deploy", here))[1:]
        return self.at_its_prompt("a password", *words) if "--ask-become-pass" in words else self.run(*words)

    def at_its_prompt(self, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
        """What asks for a password throws away what was typed before it asked."""
        command = ["script", "-qec", shlex.join([*L40S_DEPLOY, *words]), "/dev/null"]
        shown = b""
        with subprocess.Popen(
            command, env=self.environment, cwd=self.home, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            while not shown.endswith(b"password on the nodes: ") and (more := os.read(process.stdout.fileno(), 1)):
                shown += more
            rest, _ = process.communicate(f"{answer}\n".encode(), timeout=600 * slack())
        return subprocess.CompletedProcess(command, process.returncode, (shown + rest).decode(), "")

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

    @property
    def environment(self) -> dict[str, str]:
        ours = {name: value for name, value in self.lab.environment.items() if name != "L40S_INVENTORY"}
        return {**ours, "HOME": str(self.home), "TERM": "xterm-256color"}

    def _run(self, words: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self.environment,
            cwd=self.home,
            input=typed,
            capture_output=True,
            text=True,
            timeout=600 * slack(),
            check=False,
        )


def arrived(lab: SmallLab) -> Newcomer:
    home = lab.folder / "home"
    home.mkdir()
    shutil.copy(lab.lab_inventory()["all"]["vars"]["ansible_ssh_private_key_file"], home / "id")
    return Newcomer(lab, home)


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with small_lab("init", level=2) as lab:
        if lab.running_level() != 2:
            pytest.skip("nodes that boot systemd can't be had here")
        yield arrived(lab)


def test_from_hosts_to_an_inventory_that_works(newcomer: Newcomer) -> None:
    inventory, known = newcomer.inventory, newcomer.home / ".ssh" / "known_hosts"

    nobody_to_ask = newcomer.run("init", *newcomer.words("node"))
    assert nobody_to_ask.returncode == 4, nobody_to_ask.stderr
    assert "node1: host key ssh-ed25519 SHA256:" in nobody_to_ask.stderr
    assert "--accept-host-keys" in nobody_to_ask.stderr and not inventory.exists() and not known.exists()

    refused = newcomer.on_a_terminal("no\n", "init", *newcomer.words("node"))
    assert refused.returncode == 4 and not inventory.exists() and not known.exists()

    hosts, options = newcomer.words("node")[:2], newcomer.words("node")[2:]
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
    again = newcomer.run("init", *newcomer.words("node"))
    assert again.returncode == 2 and "never overwrites" in again.stderr and inventory.read_text() == before


def test_a_host_that_is_not_there_is_named_and_nothing_is_written(newcomer: Newcomer) -> None:
    done = newcomer.run(
        "init", "--out", "other.yml", "--accept-host-keys", *newcomer.words("node")[:1], "away=127.0.0.1", "--port", "1"
    )
    assert done.returncode == 4 and "away" in done.stderr
    assert not (newcomer.home / "other.yml").exists()


@pytest.mark.long
def test_from_four_bare_nodes_to_ready_as_the_readme_says_it() -> None:
    commands = typed()
    verbs = [" ".join(words.split()[1 : 3 if " checkpoint " in words else 2]) for words in commands]
    assert verbs == [
        *("init", "doctor", "prepare"),
        *("checkpoint download", "checkpoint reblock", "checkpoint push"),
        *("plan", "up"),
    ]
    with small_lab("quickstart", level=2, nodes=4, gpus=8, engine="none") as lab:
        newcomer = arrived(lab)
        for command in commands:
            done = newcomer.type(command)
            print(command, done.returncode, done.stdout[-1500:], done.stderr[-1500:], sep="\n")
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            if " init " in command:
                newcomer.settle()
        (gang,) = json.loads(newcomer.run("status", "--json").stdout)["gangs"]
        assert gang["state"] == "ready" and gang["model"] == "DeepSeek-V3-0324-Block64x64"
        for command in learnt(commands):
            done = newcomer.type(command)
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        newcomer.run("down")
