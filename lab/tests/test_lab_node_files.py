from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.node import bare, tree
from l40s_lab.node import files as node_files
from orchestrator.engines.registry import newest
from orchestrator.loading.stacks import load_stack, stack_lock


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    files = node_files.engine_files("/lab", "/venvs", below=str(folder))
    tree.write(files, folder)
    launcher = folder / "venvs/sglang-0.5.23/bin/python3"
    return subprocess.run([str(launcher), *words], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("flags", [(), ("-u",), ("-u", "-B")])
def test_launching_sglang_starts_the_stand_in_with_that_versions_flags(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = launch(tmp_path, *flags, "-m", "sglang.launch_server", "--cuda-graph-max-bs", "32")
    assert done.returncode == 2
    assert "launch_server.py: error" in done.stderr, "0.5.23 does not know that flag"


def test_anything_else_is_the_systems_python(tmp_path: Path) -> None:
    assert launch(tmp_path / "a folder", "-c", "print(6 * 7)").stdout == "42\n"


def test_launchers_are_clean_shell(tmp_path: Path) -> None:
    launch(tmp_path, "--version")
    for script in tmp_path.glob("venvs/*/bin/python3"):
        done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_launchers_pass_on_how_ranks_die(tmp_path: Path) -> None:
    plain = node_files.engine_files("/lab", "/venvs", exports=node_files.played("plain"))
    cuda = node_files.engine_files("/lab", "/venvs", exports=node_files.played("cuda"))
    launcher = "/venvs/sglang-0.5.23/bin/python3"
    assert b"STANDIN_DEATHS" not in plain.files[launcher]
    assert b"export STANDIN_DEATHS=cuda\n" in cuda.files[launcher]


def blueprint(root: Path, engine: str) -> Blueprint:
    return Blueprint(
        name="lab", directory="/lab", level=2, prefix="10.9.8", nodes=("node0",), gangs={"gang0": ("node0",)},
        engine=engine, wiring_name="right", wiring={}, fingerprint="f", rootfs=str(root),
    )  # fmt: skip


def test_a_bare_node_has_only_what_installs_the_stand_in(tmp_path: Path, node: Callable[..., NodeMachine]) -> None:
    """pip takes the lab's stack from the node's own wheels, and the engine in it knows that version's flags."""
    files = node_files.render(blueprint(tmp_path, "none"), node()).files
    assert not [path for path in files if path.startswith(("/opt/", "/workspace/"))]
    assert files["/etc/apt/sources.list"] == f"deb [trusted=yes] file:{bare.DEBS} ./\n".encode()
    (wheel,) = (path for path in files if path.endswith(".whl"))
    assert f"find-links = {wheel.rpartition('/')[0]}\n" in files["/etc/pip.conf"].decode()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / wheel.rpartition("/")[2]).write_bytes(files[wheel])
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--only-binary=:all:"]
    lock = ["--requirement", str(stack_lock(str(bare.STACK))), "--target", str(tmp_path / "site")]
    subprocess.run([*pip, "--find-links", str(tmp_path / "wheels"), *lock], check=True, timeout=120)
    launch = [sys.executable, "-m", "sglang.launch_server", "--cuda-graph-max-bs", "32"]
    done = subprocess.run(launch, cwd=tmp_path / "site", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "launch_server.py: error" in done.stderr
    assert load_stack(str(bare.STACK)).engine_version == load_stack(newest().stack).engine_version


@pytest.mark.parametrize("folder", [f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64"])
@pytest.mark.parametrize("has", [True, False])
def test_libraries_go_where_the_nodes_root_has_none_whatever_this_machine_has(
    tmp_path: Path, node: Callable[..., NodeMachine], folder: str, has: bool
) -> None:
    libraries = tmp_path / folder
    libraries.mkdir(parents=True)
    if has:
        (libraries / "libibverbs.so.1.14.44.0").touch()
        (libraries / "libibverbs.so.1").symlink_to("libibverbs.so.1.14.44.0")
    files = node_files.render(blueprint(tmp_path, "standin"), node()).files
    assert "/opt/l40s/venvs/sglang-0.5.23/bin/python3" in files
    assert (f"/{folder}/libibverbs.so.1" in files) is not has
    assert f"/{folder}/libnvidia-ml.so.1" in files
