"""Operator mistakes on a running cluster: each has its own message and exit code, and starts nothing.

Those that need no cluster: tests/unit/cli/test_plan_bad_input.py, tests/unit/loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.small_lab import RunningLab

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]

MODEL = "DeepSeek-V3-0324-Block64x64"
DIRECTORY = f"/workspace/{MODEL}"
Variables = dict[str, Any]


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


def nobody(lab: RunningLab, _: Variables, hosts: Variables, __: Path) -> None:
    """A node that does not answer."""
    hosts["node2"]["ansible_host"] = lab.hosts()["node0"].rpartition(".")[0] + ".250"


def known(common: Variables, file: Path, text: str) -> None:
    file.write_text(text)
    common["ansible_ssh_common_args"] = f"-o UserKnownHostsFile={file}"


def unknown_key(_: RunningLab, common: Variables, __: Variables, folder: Path) -> None:
    known(common, folder / "known_hosts", "")


def another_key(lab: RunningLab, common: Variables, _: Variables, folder: Path) -> None:
    lines = [line.split(" ", 1) for line in (lab.directory / "known_hosts").read_text().splitlines()]
    swapped = [f"{name} {lines[place - 1][1]}\n" for place, (name, _) in enumerate(lines)]
    known(common, folder / "known_hosts", "".join(swapped))


def no_python(_: RunningLab, __: Variables, hosts: Variables, ___: Path) -> None:
    hosts["node1"]["ansible_python_interpreter"] = "/opt/none/python3"


def old_python(lab: RunningLab, _: Variables, hosts: Variables, __: Path) -> None:
    old = "import sys; sys.version_info = (3, 6)\\nimport runpy; runpy.run_path(sys.argv[1], run_name=__name__)"
    place = "/usr/local/bin/python3.6"
    script = f'#!/bin/sh\nshift\nf=$1; shift\nexec /usr/bin/python3 -c "$(printf \'{old}\')" "$f" "$@"\n'
    lab.ssh("node1", f"cat > {place} && chmod 755 {place}", script.encode())
    hosts["node1"]["ansible_python_interpreter"] = place


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (nobody, 4, ["node2"]),
        (unknown_key, 4, ["host key", "ssh-keyscan"]),
        (another_key, 4, ["ssh-keygen -R"]),
        (no_python, 3, ["/opt/none/python3"]),
        (old_python, 3, ["python3 is 3.6; 3.10 or newer is needed"]),
    ],
)
def test_a_wrong_inventory(
    lab: RunningLab,
    tmp_path: Path,
    change: Callable[[RunningLab, Variables, Variables, Path], None],
    code: int,
    words: list[str],
) -> None:
    document = lab.lab_inventory()
    change(lab, document["all"]["vars"], document["all"]["children"]["gangs"]["children"]["gang0"]["hosts"], tmp_path)
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump(document))
    said = replace(lab, inventory=inventory).deploy("up", "--model", MODEL, code=code).stderr
    assert "Traceback" not in said and all(word in said for word in words), said


TAKEN = "import socket,time; s=socket.create_server((\\'\\', 8000)); time.sleep(60)"
CLAIM = (
    "sleep 60 >/dev/null 2>&1 & p=$!; set -- $(cat /proc/$p/stat); shift 21; mkdir -p /run/l40s-lab/gpu-claims; "
    'echo "20000000000 $1" > /run/l40s-lab/gpu-claims/5.$p; echo $p > /run/taken; echo $p'
)


@pytest.mark.parametrize(
    ("node", "breaks", "heals", "word"),
    [
        ("node3", f"mv {DIRECTORY} {DIRECTORY}.away", f"mv {DIRECTORY}.away {DIRECTORY}", DIRECTORY),
        (
            "node1",
            f"setsid python3 -c $'{TAKEN}' >/dev/null 2>&1 & echo $! > /run/taken; sleep 0.5",
            "kill $(cat /run/taken)",
            "8000",
        ),
        ("node2", CLAIM, "kill $(cat /run/taken); rm -f /run/l40s-lab/gpu-claims/5.*", ""),
    ],
    ids=["a missing model", "a taken port", "a busy GPU"],
)
def test_a_node_that_can_not_take_part_is_named_with_the_reason(
    lab: RunningLab, node: str, breaks: str, heals: str, word: str
) -> None:
    told = lab.ssh(node, breaks).strip()  # who has the GPU
    try:
        done = lab.deploy("up", "--model", MODEL, code=None)
    finally:
        lab.ssh(node, heals)
    assert done.returncode in (3, 5), done.stderr
    assert all(part in done.stderr for part in (node, word, told)), done.stderr
