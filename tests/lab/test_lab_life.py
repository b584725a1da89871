"""A lab comes up, stays unchanged, and leaves nothing, whatever was killed and when."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import RunningLab
from tests.support.waiting import until

from l40s_lab.life.home import Home
from l40s_lab.processes import Identity

from .conftest import THE_LAB_ITSELF, needs_root

pytestmark = [pytest.mark.lab, needs_root, THE_LAB_ITSELF]


@pytest.fixture
def lab(labs: Callable[[str], RunningLab]) -> Iterator[RunningLab]:
    made = labs("life")
    yield made
    made.run("down")


def test_the_same_again_changes_nothing_and_says_so(lab: RunningLab) -> None:
    lab.run("up", "--nodes", "2")
    supervisor = supervisor_of(lab)
    began = time.monotonic()
    again = lab.run("up", "--nodes", "2")
    print(f"second `lab up`: {time.monotonic() - began:.2f} s")
    assert "already running" in again.stderr
    assert supervisor_of(lab) == supervisor


def test_status_has_its_shape(lab: RunningLab) -> None:
    lab.run("up", "--nodes", "4", "--gangs", "2")
    shape = json.loads(lab.run("status", "--json").stdout)
    assert shape["level"] == 1
    assert shape["wiring"] == "right"
    assert shape["engine"] == "standin"
    assert shape["inventory"] == str(lab.directory / "inventory.yml")
    assert [(node["name"], node["state"], node["faults"]) for node in shape["nodes"]] == [
        (f"node{index}", "up", []) for index in range(4)
    ]
    gangs = lab.lab_inventory()["all"]["children"]["gangs"]["children"]
    assert {name: list(gang["hosts"]) for name, gang in gangs.items()} == {
        "gang0": ["node0", "node1"],
        "gang1": ["node2", "node3"],
    }


@pytest.mark.turns(of="lab: the next up replaces what is dead")
def test_a_dead_node_shows_and_the_next_up_replaces_the_lab(lab: RunningLab) -> None:
    lab.run("up", "--nodes", "2")
    node = node_pids(lab)["node1"]
    os.kill(node, signal.SIGKILL)
    states = json.loads(lab.run("status", "--json").stdout)["nodes"]
    assert [state["state"] for state in states] == ["up", "down"]
    assert "replacing" in lab.run("up", "--nodes", "2").stderr
    assert lab.ssh("node1", "hostname") == "node1\n"


@pytest.mark.turns(of="lab: the next up replaces what is dead")
def test_up_after_a_killed_supervisor_builds_a_new_lab(lab: RunningLab) -> None:
    lab.run("up", "--nodes", "1")
    supervisor_of(lab).kill()
    lab.run("up", "--nodes", "1")
    assert lab.ssh("node0", "hostname") == "node0\n"


@pytest.mark.turns
@pytest.mark.parametrize("verb", ["down", "up"])
def test_a_lab_whose_files_were_removed_is_found_by_its_process(lab: RunningLab, verb: str) -> None:
    lab.run("up", "--nodes", "1")
    supervisor = supervisor_of(lab)
    shutil.rmtree(lab.directory)
    assert supervisor.alive
    lab.run(verb)
    until(lambda: not supervisor.alive)
    assert lab.directory.exists() == (verb == "up")


MOMENTS: dict[str, Callable[[RunningLab], bool]] = {
    "directory": lambda lab: lab.directory.exists(),
    "keys": lambda lab: (lab.directory / "known_hosts").exists(),
    "supervisor": lambda lab: (lab.directory / "supervisor.json").exists(),
    "link": lambda lab: bool(own_links(lab)),
    "nodes": lambda lab: (lab.directory / "nodes.json").exists(),
}


@pytest.mark.turns
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lab_killed_half_way_leaves_only_files(lab: RunningLab, moment: str) -> None:
    starting = subprocess.Popen(
        [*L40S_DEPLOY, "lab", "up", "--nodes", "3", "--level", "1", "--name", lab.name],
        env=lab.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: MOMENTS[moment](lab), 20.0, step_s=0.001)
    starting.kill()
    starting.wait()
    until(lambda: not processes_of(lab), 10.0)
    until(lambda: not own_links(lab), 10.0)
    lab.run("down")
    assert not lab.directory.exists()
    lab.run("up", "--nodes", "1")
    assert lab.ssh("node0", "hostname") == "node0\n"


def test_down_of_what_is_not_there_is_no_failure(lab: RunningLab) -> None:
    assert "no lab" in lab.run("down").stderr


def test_two_labs_have_their_own_networks(labs: Callable[[str], RunningLab], lab: RunningLab) -> None:
    other = labs("other")
    lab.run("up", "--nodes", "1")
    other.run("up", "--nodes", "1")
    addresses = {one.hosts()["node0"].rpartition(".")[0] for one in (lab, other)}
    assert len(addresses) == 2
    assert lab.ssh("node0", "hostname") == other.ssh("node0", "hostname") == "node0\n"


@pytest.mark.turns
@pytest.mark.parametrize("victim", ["nobody", "supervisor", "node", "sshd", "starter"])
def test_nothing_is_left_on_a_machine_of_our_own(tmp_path: Path, victim: str) -> None:
    expect_spotless(tmp_path, "1", victim)


def expect_console_of_root(lab: RunningLab) -> None:
    """On a node without its network too."""
    lab.console("exec", "node1", "ip", "link", "set", "bond0", "down")
    done = lab.console("exec", "node1", "--", "sh", "-c", "hostname; pwd; id -un; cat; exit 7", stdin="said\n")
    assert (done.returncode, done.stdout.split()) == (7, ["node1", "/root", "root", "said"])
    lab.console("exec", "node1", "ip", "link", "set", "bond0", "up")
    assert lab.console("exec", "node1", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert lab.console("exec", "node1", "--", "no-such-program").returncode == 127
    done = lab.console("shell", "node1", stdin="hostname; exit 5\n")
    assert (done.returncode, done.stdout) == (5, "node1\n")
    assert "there is no node 'node9'" in lab.console("exec", "node9", "true").stderr


def expect_spotless(tmp_path: Path, level: str, victim: str) -> None:
    """In namespaces without other users: links, mounts, processes, namespaces and files are equal before and after."""
    script = Path(__file__).with_name("spotless.py")
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc",
         "sh", "-c", '"$@"; exit $?', "spotless", sys.executable, str(script), str(tmp_path / "labs"), level, victim],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_file_systems_of_their_own_are_shown_too(lab: RunningLab, tmp_path: Path) -> None:
    """Many machines have /opt or /srv on another disk, which an overlay of / does not contain."""
    (tmp_path / "srv").mkdir()
    (tmp_path / "opt").mkdir()
    script = """
mount -t tmpfs ours "$1/srv" && echo of-the-host >"$1/srv/file" && mount --bind "$1/srv" /srv
mount -t tmpfs ours "$1/opt" && mkdir "$1/opt/theirs" && mount --bind "$1/opt" /opt
shift; exec "$@"
"""
    command = [*L40S_DEPLOY, "lab", "up", "--nodes", "1", "--level", "1", "--name", lab.name]
    subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path), *command],
        env=lab.environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert lab.ssh("node0", "cat /srv/file; ls /opt; touch /srv/new").split() == ["of-the-host", "l40s", "theirs"]


def test_32_nodes(lab: RunningLab) -> None:
    began = time.monotonic()
    lab.run("up", "--nodes", "32", "--gangs", "8")
    up = time.monotonic() - began
    states = json.loads(lab.run("status", "--json").stdout)["nodes"]
    assert [state["state"] for state in states] == ["up"] * 32
    began = time.monotonic()
    lab.run("down")
    print(f"32 nodes: up {up:.2f} s, down {time.monotonic() - began:.2f} s")


def supervisor_of(lab: RunningLab) -> Identity:
    return Identity(**json.loads((lab.directory / "supervisor.json").read_text()))


def node_pids(lab: RunningLab) -> dict[str, int]:
    """Node -> pid of its PID 1 on this machine: NSpid also lists it in the lab's own numbers."""
    inside = {number: name for name, number in json.loads((lab.directory / "nodes.json").read_text()).items()}
    found = {}
    children = Path(f"/proc/{supervisor_of(lab).pid}/task/{supervisor_of(lab).pid}/children").read_text().split()
    for child in children:
        status = Path(f"/proc/{child}/status").read_text()
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        found[inside[int(numbers[-2])]] = int(child)
    return found


def own_links(lab: RunningLab) -> list[str]:
    """Of this machine; none while the lab has not decided on its name."""
    try:
        name = json.loads((lab.directory / "blueprint.json").read_text())["host_link"]
    except (FileNotFoundError, json.JSONDecodeError):  # not written yet, or half
        return []
    return [name] if Path("/sys/class/net", name).exists() else []


def control_groups_of(lab: RunningLab) -> list[str]:
    """The lab's groups, in a tree that this machine need not mount: read in a separate mount namespace."""
    script = "mount -t cgroup2 none /sys && find /sys -maxdepth 1 -name l40s-lab-*"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.split() if line.endswith(home_of(lab).mark)]


def home_of(lab: RunningLab) -> Home:
    return Home(lab.name, lab.directory)


def processes_of(lab: RunningLab) -> list[str]:
    """Living processes that name the lab's directory on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if str(lab.directory).encode() in words:
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found
