"""A lab modelled on an operator's own cluster: its gangs and names, its wiring, its machines as recorded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import preloaded
from tests.support.preloaded import L40S_DEPLOY
from tests.support.waiting import slack

from .conftest import RunningLab, needs_root

pytestmark = [pytest.mark.lab, needs_root]

MINE = """
all:
  vars: {ansible_user: admin, l40s_http_port: 8080, l40s_model_root: /data}
  children:
    gangs:
      children:
        east: {hosts: {gpu-1.dc1: {l40s_gpus: 4}, gpu-2.dc1: {l40s_gpus: 4}}}
        west: {hosts: {gpu-3.dc1: {ansible_host: 192.0.2.3}}}
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "hosts.yml"
    path.write_text(MINE)
    return path


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab], mine: Path) -> RunningLab:
    """An operator's cluster on machines whose names and GID indices differ."""
    made = labs("like")
    said = made.run("up", "--like", str(mine), "--wiring", "mixed-names").stderr
    assert "ignored, because it is specific to the machines: l40s_model_root" in said
    assert "3 nodes in 2 gangs, wiring mixed-names" in said
    return made


def l40s(lab: RunningLab, *words: str) -> subprocess.CompletedProcess[str]:
    words = (*words, "--inventory", str(lab.directory / "inventory.yml"))
    return preloaded.run(words, lab.environment(), 60 * slack())


def looked_at(lab: RunningLab) -> list[dict[str, Any]]:
    """What `discover` finds on the nodes, without the addresses that the lab gives."""
    prefix = lab.hosts()["gpu-1.dc1"]["ansible_host"].rpartition(".")[0]
    nodes: list[dict[str, Any]] = json.loads(
        l40s(lab, "discover", "--json").stdout.replace(prefix, "10.0.0").replace(hexadecimal(prefix), "0a00:00")
    )["nodes"]
    return nodes


def hexadecimal(prefix: str) -> str:
    """The first three numbers of an address as in a GID."""
    one, two, three = (int(part) for part in prefix.split("."))
    return f"{one:02x}{two:02x}:{three:02x}"


def test_gangs_names_gpus_and_settings_are_theirs(lab: RunningLab) -> None:
    gangs = lab.inventory()["all"]["children"]["gangs"]["children"]
    assert {gang: list(facts["hosts"]) for gang, facts in gangs.items()} == {
        "east": ["gpu-1.dc1", "gpu-2.dc1"],
        "west": ["gpu-3.dc1"],
    }
    assert lab.inventory()["all"]["vars"]["l40s_http_port"] == 8080
    assert lab.ssh("gpu-2.dc1", "hostname; getent hosts gpu-3.dc1").split()[0] == "gpu-2.dc1"
    counts = {
        node: lab.ssh(node, "cat /sys/bus/pci/devices/*/class | grep -c 0x030200").strip() for node in lab.hosts()
    }
    assert counts == {"gpu-1.dc1": "4", "gpu-2.dc1": "4", "gpu-3.dc1": "8"}


def test_nodes_differ_as_the_wiring_says(lab: RunningLab) -> None:
    names = {node: lab.ssh(node, "ls /sys/class/infiniband").split() for node in lab.hosts()}
    assert "mlx5_0" in names["gpu-1.dc1"]
    assert "rocep28s0f0" in names["gpu-2.dc1"]
    assert lab.ssh("gpu-3.dc1", "cat /sys/class/infiniband/mlx5_0/ports/1/gids/5").strip().endswith("ffff:c0a8:650c")
    assert "fd00:101::12" in lab.ssh("gpu-3.dc1", "ip -6 -br address show dev ens5f0np0")


def test_machines_that_were_recorded_are_shown_again(
    lab: RunningLab, labs: Callable[[str], RunningLab], mine: Path, tmp_path: Path
) -> None:
    """Recorded by `discover --save` as on a real cluster; a lab of the recording shows the same."""
    saved = tmp_path / "snapshots"
    assert l40s(lab, "discover", "--save", str(saved)).returncode == 0
    again = labs("again")
    assert "wiring recorded in" in again.run("up", "--like", str(mine), "--from", str(saved)).stderr
    assert looked_at(again) == looked_at(lab)
    said = again.ssh("gpu-3.dc1", "timeout 5 bash -c '</dev/tcp/192.168.101.10/9' 2>&1 || true")
    assert "Connection refused" in said, "what was in one network is cabled together"
    refused = again.console("break", "gpu-3.dc1", "gpu-lost", "2")
    assert "which recorded machines do not have" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--like", "nowhere.yml"), 2, "nowhere.yml"),
        (("--from", "nowhere"), 2, "does not exist"),
        (
            ("--from", "RECORDED", "--like", "MINE"),
            2,
            "there is no snapshot of gpu-1.dc1, gpu-2.dc1, gpu-3.dc1, only of h200-vm",
        ),
        (("--from", "RECORDED", "--wiring", "wrong"), 2, "recorded machines have their own wiring"),
        (("--like", "MINE", "--gangs", "2"), 2, "the inventory determines the nodes"),
        (("--like", "MINE", "--wiring", "eight-of-four"), 2, "keep_gpus: found 8, wanted 0 to 4"),
    ],
)
def test_what_cannot_be_starts_nothing(
    labs: Callable[[str], RunningLab], mine: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    other = labs("never")
    recorded = Path(__file__).parents[1] / "recorded/two-h200-vm.json"
    named = {"MINE": str(mine), "RECORDED": str(recorded)}
    done = other.run("up", *(named.get(word, word) for word in words), check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not other.directory.exists()


def test_the_wirings_are_listed(lab: RunningLab) -> None:
    done = subprocess.run([*L40S_DEPLOY, "lab", "wirings", "--json"], capture_output=True, text=True, check=True)
    wirings = {one["name"]: one["summary"] for one in json.loads(done.stdout)["wirings"]}
    assert {"right", "wrong", "eight-of-four", "l20", "infiniband", "tcp-only", "mixed-names"} <= {*wirings}
    assert all(wirings.values())
