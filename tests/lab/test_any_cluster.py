"""A lab modelled on an operator's own cluster: its gangs and names, its wiring, its machines as recorded. And
rehearsals as an operator types them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import RunningLab

from .conftest import SEEN, needs_root

pytestmark = [pytest.mark.lab, needs_root, SEEN]

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


def looked_at(lab: RunningLab) -> list[dict[str, Any]]:
    """What `discover` finds on the nodes, without the addresses that the lab gives."""
    prefix = lab.hosts()["gpu-1.dc1"].rpartition(".")[0]
    nodes: list[dict[str, Any]] = json.loads(
        lab.deploy("discover", "--json").stdout.replace(prefix, "10.0.0").replace(hexadecimal(prefix), "0a00:00")
    )["nodes"]
    return nodes


def hexadecimal(prefix: str) -> str:
    """The first three numbers of an address as in a GID."""
    one, two, three = (int(part) for part in prefix.split("."))
    return f"{one:02x}{two:02x}:{three:02x}"


def test_gangs_names_gpus_and_settings_are_theirs(lab: RunningLab) -> None:
    gangs = lab.lab_inventory()["all"]["children"]["gangs"]["children"]
    assert {gang: list(facts["hosts"]) for gang, facts in gangs.items()} == {
        "east": ["gpu-1.dc1", "gpu-2.dc1"],
        "west": ["gpu-3.dc1"],
    }
    assert lab.lab_inventory()["all"]["vars"]["l40s_http_port"] == 8080
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
    lab.deploy("discover", "--save", str(saved))
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


@pytest.mark.turns(of="rehearsals: how one ends is judged")
def test_a_dead_rank_at_night_ends_as_expected(labs: Callable[[str], RunningLab]) -> None:
    lab = labs("night")
    done = lab.run("rehearse", "dead-rank")
    assert "failed: TP19" in done.stdout and "as expected" in done.stdout
    assert not lab.directory.exists()


@pytest.mark.turns(of="rehearsals: how one ends is judged")
def test_an_end_that_differs_is_told_with_its_step(labs: Callable[[str], RunningLab], tmp_path: Path) -> None:
    story = tmp_path / "story.yml"
    story.write_text(
        "summary: a fault that doctor is not expected to find\n"
        "lab: {nodes: 3, level: 1}\n"
        "steps:\n"
        "  - break: node1 gpu-lost 0\n"
        "  - {run: doctor, exit: 0}\n"
    )
    lab = labs("differs")
    done = lab.run("rehearse", str(story), check=False)
    assert done.returncode == 7, done.stderr
    assert "steps[1]" in done.stderr and "wanted exit code 0, found 3" in done.stderr
    assert not lab.directory.exists()
