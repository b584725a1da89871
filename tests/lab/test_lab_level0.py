"""Level 0: a lab without root and without namespaces, for any user."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest
from tests.support.small_lab import RunningLab
from tests.support.waiting import until

from l40s_lab.processes import Identity

from .conftest import THE_LAB_ITSELF, needs_root

pytestmark = [pytest.mark.lab, THE_LAB_ITSELF]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def lab(labs: Callable[[str], RunningLab]) -> Iterator[RunningLab]:
    made = labs("zero")
    said = made.run("up", "--level", "0", "--nodes", "2").stderr
    assert "level 0" in said
    assert "no link faults" in said
    yield made
    made.run("down")


def test_nodes_have_hardware_and_engine_of_their_own(lab: RunningLab) -> None:
    hosts = lab.host_variables()
    for node, facts in hosts.items():
        root = facts["l40s_fs_root"]
        out = lab.ssh(node, f"cat {root}/sys/class/infiniband/mlx5_0/ports/1/gids/3 {root}/sys/class/net/bond0/mtu")
        assert out.split()[1] == "1500"
        assert lab.ssh(node, f"ls {facts['l40s_venv']}/bin") == "python3\n"
        assert lab.ssh(node, f"wc -c <{root}/sys/bus/pci/devices/0000:18:00.0/config").strip() == str(
            4096 if os.geteuid() == 0 else 64
        )
    assert len({facts["l40s_state_dir"] for facts in hosts.values()}) == 2
    model = lab.lab_inventory()["all"]["vars"]["l40s_model_root"]
    assert "config.json" in lab.ssh("node0", f"ls {model}/DeepSeek-V3-0324-Block64x64")


@pytest.mark.turns
@pytest.mark.parametrize("first", ["down", "kill the supervisor"])
def test_what_sessions_left_behind_ends_with_the_lab(lab: RunningLab, first: str) -> None:
    ours = f"4321.{os.getpid()}"  # nobody else's on this machine
    lab.ssh("node1", f"setsid sleep {ours} >/dev/null 2>&1 </dev/null & echo $! >/dev/null")
    left = [Identity.of(pid) for pid in sleepers(ours)]
    supervisor = Identity(**json.loads((lab.directory / "supervisor.json").read_text()))
    if first != "down":
        supervisor.kill()
        until(lambda: not supervisor.alive, 10.0)
    lab.run("down")
    assert left
    assert not any(one and one.alive for one in left)
    assert not supervisor.alive
    assert not lab.directory.exists()


def sleepers(seconds: str) -> list[int]:
    wanted = f"sleep\0{seconds}\0".encode()
    found: list[int] = []

    def look() -> bool:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it may end while we look
                if entry.read_bytes() == wanted:
                    found.append(int(entry.parent.name))
        return bool(found)

    until(look, 5.0)
    return found


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own does not allow it."""
    with tempfile.TemporaryDirectory(prefix="l40s-lab-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs_root
def test_a_user_without_root_gets_level_0_by_himself(public_folder: Path) -> None:
    python = Path("/usr/bin/python3")
    version = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    if version.stdout.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip("the system's python3 can't use this environment's packages: another version")
    if not world_readable(REPOSITORY / "src/orchestrator/__init__.py"):
        pytest.skip("the checkout lies where other users can't read it")
    home = public_folder / "home"
    home.mkdir()
    os.chown(home, 54321, 54321)
    etc = public_folder / "etc"  # a file that is mounted over would lose that where another test replaces the file
    subprocess.run(["cp", "-a", "/etc", etc], check=True)
    with (etc / "passwd").open("a") as users:
        users.write(f"labuser:x:54321:54321::{home}:/bin/bash\n")
    (public_folder / "story.sh").write_text(STORY)
    script = f"""
mount --bind {etc} /etc
exec setpriv --reuid 54321 --regid 54321 --clear-groups env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME={home} \\
  L40S_LAB_ROOT={home}/labs PYTHONPATH={REPOSITORY}/src:{REPOSITORY}/lab/src:{Path(inspect.getfile(pynvml)).parent} \\
  PYTHONDONTWRITEBYTECODE=1 sh -e {public_folder}/story.sh
"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-e", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["level"] == 0
    assert "level 0 (not root)" in done.stderr
    assert "\nlabuser\n" in done.stderr
    assert not (home / "labs").exists()


STORY = """
lab() { /usr/bin/python3 -m orchestrator.cli.main lab "$@"; }
lab up --nodes 2 >&2
lab status --json
here=$L40S_LAB_ROOT/lab
address=$(sed -n "s/.*ansible_host: //p" $here/inventory.yml | head -1)
port=$(sed -n "s/.*ansible_port: //p" $here/inventory.yml)
keys="-o UserKnownHostsFile=$here/known_hosts -i $here/client"
ssh -F none -o BatchMode=yes $keys -p $port labuser@$address id -un >&2
lab down >&2
"""


def world_readable(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in path.parents) and bool(path.stat().st_mode & 0o004)


def test_exec_passes_output_and_exit_code_on(lab: RunningLab) -> None:
    done = lab.console("exec", "node1", "--", "sh", "-c", "echo $L40S_LAB_NVML; cat; exit 7", stdin="said\n")
    assert (done.returncode, done.stdout.split()) == (7, [str(lab.directory / "nodes/node1/nvml.conf"), "said"])
    assert lab.console("exec", "node1", "--", "no-such-program").returncode == 127


def test_a_shell_is_on_the_node(lab: RunningLab) -> None:
    done = lab.console("shell", "node1", stdin="echo at $L40S_LAB_NVML; exit 5\n")
    assert (done.returncode, done.stdout.split()[-2:]) == (5, ["at", str(lab.directory / "nodes/node1/nvml.conf")])
