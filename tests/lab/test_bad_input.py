"""Operator mistakes on a running cluster: each has its own message and exit code, and starts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import preloaded
from tests.support.waiting import slack

from .conftest import RunningLab, needs_root

pytestmark = [pytest.mark.lab, needs_root]

MODEL = "DeepSeek-V3-0324-Block64x64"
DIRECTORY = f"/workspace/{MODEL}"


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab]) -> RunningLab:
    made = labs("badin")
    made.run("up")
    return made


@pytest.fixture(autouse=True)
def nothing_is_started(lab: RunningLab) -> Iterator[None]:
    yield
    for node in lab.hosts():
        assert "sglang" not in lab.ssh(node, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"), node


def up(lab: RunningLab, inventory: Path | None = None, model: str = MODEL) -> tuple[int, str]:
    words = ("up", "-i", str(inventory or lab.directory / "inventory.yml"), "--model", model)
    done = preloaded.run(words, lab.environment(), 60 * slack())
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def changed(lab: RunningLab, path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """The lab's inventory with something wrong in it: change(variables of all, hosts)."""
    document = lab.inventory()
    change(document["all"]["vars"], document["all"]["children"]["gangs"]["children"]["gang0"]["hosts"])
    path.write_text(yaml.safe_dump(document))
    return path


def test_an_unknown_model_names_the_nearest(lab: RunningLab) -> None:
    code, said = up(lab, model="DeepSeek-V3-0324-Block64")
    assert code == 2
    assert MODEL in said


def test_an_inventory_that_is_not_there(lab: RunningLab, tmp_path: Path) -> None:
    code, said = up(lab, tmp_path / "hosts.yml")
    assert code == 2
    assert "hosts.yml" in said


def test_a_broken_inventory_names_file_and_line(lab: RunningLab, tmp_path: Path) -> None:
    broken = tmp_path / "hosts.yml"
    broken.write_text("all:\n  children: [gangs\n")
    code, said = up(lab, broken)
    assert code == 2
    assert "hosts.yml" in said


def test_a_node_that_does_not_answer_is_named(lab: RunningLab, tmp_path: Path) -> None:
    nobody = lab.hosts()["node0"]["ansible_host"].rpartition(".")[0] + ".250"
    wrong = changed(lab, tmp_path / "hosts.yml", lambda _, hosts: hosts["node2"].update(ansible_host=nobody))
    code, said = up(lab, wrong)
    assert code == 4
    assert "node2" in said


def test_an_unknown_host_key_is_not_trusted(lab: RunningLab, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    options = f"-o UserKnownHostsFile={empty}"
    wrong = changed(lab, tmp_path / "hosts.yml", lambda common, _: common.update(ansible_ssh_common_args=options))
    code, said = up(lab, wrong)
    assert code == 4
    assert "host key" in said
    assert "ssh-keyscan" in said


def test_another_host_key_is_refused(lab: RunningLab, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    lines = (lab.directory / "known_hosts").read_text().splitlines()
    keys = [line.split(" ", 1)[1] for line in lines]
    swapped = [f"{line.split(' ', 1)[0]} {keys[index - 1]}" for index, line in enumerate(lines)]
    known.write_text("\n".join(swapped) + "\n")
    options = f"-o UserKnownHostsFile={known}"
    wrong = changed(lab, tmp_path / "hosts.yml", lambda common, _: common.update(ansible_ssh_common_args=options))
    code, said = up(lab, wrong)
    assert code == 4
    assert "ssh-keygen -R" in said


def test_no_python3_is_told(lab: RunningLab, tmp_path: Path) -> None:
    python = "/opt/none/python3"
    wrong = changed(
        lab, tmp_path / "hosts.yml", lambda _, hosts: hosts["node1"].update(ansible_python_interpreter=python)
    )
    code, said = up(lab, wrong)
    assert code == 3
    assert python in said


def test_an_old_python3_is_told(lab: RunningLab, tmp_path: Path) -> None:
    old = "import sys; sys.version_info = (3, 6)\\nimport runpy; runpy.run_path(sys.argv[1], run_name=__name__)"
    lab.ssh(
        "node1",
        "cat > /usr/local/bin/python3.6 && chmod 755 /usr/local/bin/python3.6",
        stdin=f'#!/bin/sh\nshift\nf=$1; shift\nexec /usr/bin/python3 -c "$(printf \'{old}\')" "$f" "$@"\n'.encode(),
    )
    wrong = changed(
        lab,
        tmp_path / "hosts.yml",
        lambda _, hosts: hosts["node1"].update(ansible_python_interpreter="/usr/local/bin/python3.6"),
    )
    code, said = up(lab, wrong)
    assert code == 3
    assert "python3 is 3.6; 3.10 or newer is needed" in said


def test_a_model_directory_missing_on_one_node(lab: RunningLab) -> None:
    lab.ssh("node3", f"mv {DIRECTORY} {DIRECTORY}.away")
    try:
        code, said = up(lab)
    finally:
        lab.ssh("node3", f"mv {DIRECTORY}.away {DIRECTORY}")
    assert code in (3, 5)
    assert "node3" in said
    assert DIRECTORY in said


def test_a_taken_port_names_who_has_it(lab: RunningLab) -> None:
    listen = "import socket,time; s=socket.create_server((\\'\\', 8000)); time.sleep(60)"
    lab.ssh("node1", f"setsid python3 -c $'{listen}' >/dev/null 2>&1 & echo $! > /run/taken; sleep 0.5")
    try:
        code, said = up(lab)
    finally:
        lab.ssh("node1", "kill $(cat /run/taken)")
    assert code in (3, 5)
    assert "node1" in said
    assert "8000" in said


def test_a_busy_gpu_names_the_process(lab: RunningLab) -> None:
    claim = (
        "sleep 60 >/dev/null 2>&1 & p=$!; set -- $(cat /proc/$p/stat); shift 21; mkdir -p /run/l40s-lab/gpu-claims; "
        'echo "20000000000 $1" > /run/l40s-lab/gpu-claims/5.$p; echo $p'
    )
    pid = lab.ssh("node2", claim).strip()
    try:
        code, said = up(lab)
    finally:
        lab.ssh("node2", f"kill {pid}; rm -f /run/l40s-lab/gpu-claims/5.{pid}")
    assert code in (3, 5)
    assert "node2" in said
    assert pid in said


def test_json_says_the_same_as_one_document(lab: RunningLab) -> None:
    words = ("up", "-i", str(lab.directory / "inventory.yml"), "--model", "nope", "--json")
    done = preloaded.run(words, lab.environment(), 60 * slack())
    assert done.returncode == 2
    assert set(json.loads(done.stderr.splitlines()[-1])["error"]) >= {"what", "where", "fix"}
