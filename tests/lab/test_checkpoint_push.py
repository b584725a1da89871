"""`checkpoint push` between lab nodes: a chain over slow links, killed at every point, and what remains of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until
from tests.unit.checkpoint.on_node.conftest import CONFIG, Raw, fp8_pair, write

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]

FILES, FILE_BYTES = 40, 500_000
RATE_BYTES = 3_000_000
TOTAL = FILES * FILE_BYTES
OTHERS = ("node1", "node2", "node3")
SLOW = (
    "tc qdisc replace dev bond0 root handle 1: htb default 1 && "
    f"tc class replace dev bond0 parent 1: classid 1:1 htb rate {RATE_BYTES * 8}bit burst 64k"
)
MAKE = (
    "mkdir -p /workspace/{0} && cd /workspace/{0} && for i in $(seq -w {1}); do head -c {2} /dev/urandom >shard-$i.bin;"
    " done; echo '{{}}' >config.json; sha256sum *"
)
SUMS = "cd /workspace/{} && sha256sum * && find . -name '.l40s*'"
PROCESSES = "pgrep -af 'push-(offer|receive)' | grep -v pgrep; true"
FILES_BEHIND = "ls -d /workspace/*.l40s-partial 2>/dev/null; true"


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("push", nodes=4) as running:
        running.write_inventory(vars={"l40s_state_dir": "/srv/l40s-state"})
        for node in running.hosts():
            running.on(node, SLOW)
        yield running


def made(lab: SmallLab, name: str, files: int = FILES, file_bytes: int = FILE_BYTES) -> str:
    """A checkpoint on node0; returns its digests."""
    return lab.on("node0", MAKE.format(name, files, file_bytes))


def push(lab: SmallLab, *words: str, code: int = 0) -> dict[str, Any]:
    done = lab.deploy("checkpoint", "push", *words, "--json", code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def facts(directory: Path) -> dict[Path, tuple[int, ...]]:
    """The files' attributes, except access times."""
    found = {path: path.lstat() for path in directory.rglob("*")}
    return {
        path: (one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for path, one in found.items()
    }


def running_still(lab: SmallLab) -> dict[str, str]:
    """Processes of a push, by node."""
    found = {node: lab.on(node, PROCESSES).strip() for node in lab.hosts()}
    return {node: what for node, what in found.items() if what}


def behind(lab: SmallLab) -> dict[str, str]:
    """What remains of a push, by node: processes and files."""
    until(lambda: not running_still(lab), 10, "all processes ended")
    found = {node: lab.on(node, FILES_BEHIND).strip() for node in lab.hosts()}
    return {node: what for node, what in found.items() if what}


def sent(lab: SmallLab) -> int:
    return int(lab.on("node0", "cat /sys/class/net/bond0/statistics/tx_bytes"))


def begin(lab: SmallLab, name: str) -> subprocess.Popen[str]:
    """A push to three nodes that has come as far as the last of them."""
    running = lab.start("checkpoint", "push", f"node0:/workspace/{name}")
    place = f"/workspace/{name}.l40s-partial/shard-01.bin"
    try:
        until(lambda: "there" in lab.on("node3", f"test -e {place} && echo there || true"), 40, "a shard on node3")
    except BaseException:
        running.kill()
        running.communicate(timeout=10)
        raise
    return running


def test_each_byte_leaves_the_source_once_on_its_way_to_three_nodes(lab: SmallLab) -> None:
    sums, before = made(lab, "chain"), sent(lab)
    push(lab, "node0:/workspace/chain")
    assert TOTAL < sent(lab) - before < 1.2 * TOTAL
    for node in OTHERS:
        assert lab.on(node, SUMS.format("chain")) == sums
    assert not behind(lab)


@pytest.mark.turns(of="push: interrupted or flipped on its way")
def test_a_controller_that_was_killed_leaves_nothing_that_looks_complete_and_the_next_one_goes_on(
    lab: SmallLab,
) -> None:
    sums = made(lab, "killed")
    running = begin(lab, "killed")
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=10)
    until(lambda: not running_still(lab), 20, "all ended")
    for node in OTHERS:
        assert lab.on(node, "test -e /workspace/killed && echo there || true") == ""
    before = sent(lab)
    again = push(lab, "node0:/workspace/killed")
    assert sent(lab) - before < TOTAL, "it began anew"
    assert {node["name"]: node["complete"] for node in again["nodes"]} == dict.fromkeys(OTHERS, True)
    for node in OTHERS:
        assert lab.on(node, SUMS.format("killed")) == sums
    assert not behind(lab)


@pytest.mark.turns(of="push: interrupted or flipped on its way")
def test_a_node_in_the_middle_is_killed(lab: SmallLab) -> None:
    """It fails, and the others go on without it."""
    sums = made(lab, "middle")
    running = begin(lab, "middle")
    lab.on("node2", "pkill -KILL -f push-receive")
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 3, out
    assert "node2" in out
    for node in ("node1", "node3"):
        assert lab.on(node, SUMS.format("middle")) == sums
    assert lab.on("node2", "test -e /workspace/middle && echo there || true") == ""
    push(lab, "node0:/workspace/middle")
    assert lab.on("node2", SUMS.format("middle")) == sums
    assert not behind(lab)


@pytest.mark.turns(of="push: interrupted or flipped on its way")
def test_a_full_disk_in_the_middle_is_told_and_the_others_go_on_without_it(lab: SmallLab) -> None:
    sums = made(lab, "full")
    running = begin(lab, "full")
    try:
        lab.run("break", "node2", "disk-full")
        out, _ = running.communicate(timeout=120)
    finally:
        lab.run("heal", "node2")
    assert running.returncode == 3, out
    assert "node2" in out and "No space left" in out
    for node in ("node1", "node3"):
        assert lab.on(node, SUMS.format("full")) == sums
    assert lab.on("node2", "test -e /workspace/full && echo there || true") == ""
    push(lab, "node0:/workspace/full")
    assert lab.on("node2", SUMS.format("full")) == sums
    assert not behind(lab)


@pytest.mark.turns(of="push: interrupted or flipped on its way")
def test_the_source_is_killed(lab: SmallLab) -> None:
    sums = made(lab, "source")
    running = begin(lab, "source")
    lab.on("node0", "pkill -KILL -f push-offer")
    out, _ = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "node0" in out
    until(lambda: not running_still(lab), 20, "all ended")
    push(lab, "node0:/workspace/source")
    for node in OTHERS:
        assert lab.on(node, SUMS.format("source")) == sums
    assert not behind(lab)


def test_a_directory_of_the_controller_goes_through_ssh_and_is_read_only(
    lab: SmallLab, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = tmp_path_factory.mktemp("controller") / "local model"
    (source / "sub").mkdir(parents=True)
    (source / "a [1].bin").write_bytes(os.urandom(300_000))
    (source / "sub" / "empty").write_bytes(b"")
    (source / ".cache").write_text("stays here")
    (source / "link.bin").symlink_to(source / "a [1].bin")
    before = facts(source)
    first = push(lab, str(source), "--node", "node1", "--node", "node2", "--bwlimit", "1M")
    second = push(lab, str(source), "--node", "node1", "--node", "node2")
    assert [node["there_before"] for node in first["nodes"]] == [False, False]
    assert [node["there_before"] for node in second["nodes"]] == [True, True]
    listing = lab.on("node2", "cd '/workspace/local model' && find . -type f | sort").split("\n")
    assert listing[:3] == ["./a [1].bin", "./link.bin", "./sub/empty"]
    assert facts(source) == before
    assert not behind(lab)


REBLOCKED = "checkpoint", "reblock", "--node", "node3", "/workspace/fp8", "/workspace/fp8-64", "--verify", "--json"


def test_reblock_on_a_node_goes_on_after_the_controller_was_killed(lab: SmallLab, tmp_path: Path) -> None:
    make_fp8(tmp_path / "fp8")
    push(lab, str(tmp_path / "fp8"), "--node", "node3")
    running = lab.start(*REBLOCKED)
    until(lambda: lab.on("node3", "ls -A /workspace/fp8-64 2>/dev/null; true"), 30, "a first file")
    running.kill()
    running.communicate(timeout=10)
    done = lab.deploy(*REBLOCKED)
    document = json.loads(done.stdout)
    assert document["new_block"] == [64, 64]
    assert document["proof"]["scales"] == SHARDS
    lab.on(
        "node3",
        "printf x | dd of=/workspace/fp8-64/model-00001-of-000012.safetensors bs=1 seek=$((1<<16)) conv=notrunc",
    )
    assert lab.deploy(*REBLOCKED, code=None).returncode == 7


SHARDS = 12


def make_fp8(folder: Path) -> None:
    """Weights of 1024 x 4096 in blocks of 128, one shard each."""
    rng, tensors = np.random.default_rng(1), dict[str, Raw]()
    for number in range(SHARDS):
        tensors |= fp8_pair(f"model.layers.{number}.mlp.gate_proj.weight", (1024, 4096), rng)
    write(folder, tensors, shards=SHARDS, config={"quantization_config": CONFIG["quantization_config"]})


@pytest.mark.turns(of="push: interrupted or flipped on its way")
def test_a_flipped_byte_is_repaired_by_the_command_that_verify_names(lab: SmallLab) -> None:
    """Only this shard is sent; push without --repair names the same command."""
    sums = made(lab, "flipped", 6, 2_000_000)
    push(lab, "node0:/workspace/flipped")
    shard = "/workspace/flipped/shard-3.bin"
    lab.on("node2", f"printf '\\125' | dd of={shard} bs=1 seek=77 conv=notrunc 2>&1; printf '\\052' | "
           f"dd of={shard} bs=1 seek=78 conv=notrunc 2>&1; true")  # fmt: skip
    assert lab.on("node2", SUMS.format("flipped")) != sums
    verified = lab.deploy("checkpoint", "verify", "flipped", "--json", code=7)
    (command,) = json.loads(verified.stdout)["fixes"]
    refused = push(lab, "node0:/workspace/flipped", code=2)
    (error,) = [node["error"] for node in refused["nodes"] if node["error"]]
    assert error["fix"] == command == "l40s-deploy checkpoint push node0:/workspace/flipped --node node2 --repair"
    before = sent(lab)
    repaired = push(lab, *command.split()[3:])
    assert sent(lab) - before < 2 * 2_000_000
    assert {node["name"]: node["files_sent"] for node in repaired["nodes"]} == {"node2": 1}
    assert lab.deploy("checkpoint", "verify", "flipped", "--fresh", code=None).returncode == 0
    assert lab.on("node2", SUMS.format("flipped")) == sums
    assert not behind(lab)
