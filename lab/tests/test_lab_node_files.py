"""The files of a node: launchers, models, how they are written, and which release its root is made of."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l40s_lab.engine.model import QWEN, TINY, WIDE
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.node import bare, models, rootfs
from l40s_lab.node import files as node_files
from l40s_lab.node.rootfs import Release, sources, this_release
from l40s_lab.node.tree import FileTree, split_common, write, write_layer
from l40s_lab.standin import hub
from orchestrator.checkpoint.on_node import hub_client, reblock
from orchestrator.engines.registry import newest
from orchestrator.loading.profiles import load_profile, load_stack, profile_names, stack_lock
from orchestrator.protocol.errors import NodeError


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    files = node_files.engine_files("/lab", "/venvs", below=str(folder))
    write(files, folder)
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
    client = newest().engine(newest().versions[-1]).bench["serving"]
    words = [sys.executable, "-m", client, "--help"]
    told = subprocess.run(words, cwd=tmp_path / "site", capture_output=True, text=True, timeout=60, check=True)
    assert "standin.bench" in told.stdout
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


def test_every_profile_that_the_stand_in_serves_has_a_directory() -> None:
    tree = models.render("/workspace")
    for name in set(profile_names()) - {TINY.name, WIDE.name, QWEN.name}:
        assert f"/workspace/{load_profile(name).directory}/config.json" in tree.files


def test_the_re_blocked_checkpoint_has_deepseeks_dimensions_and_163_shards() -> None:
    tree = models.render("/workspace")
    folder = "/workspace/DeepSeek-V3-0324-Block64x64"
    config = json.loads(tree.files[f"{folder}/config.json"])
    assert config["quantization_config"]["weight_block_size"] == [64, 64]
    assert (config["hidden_size"], config["num_hidden_layers"], config["n_routed_experts"]) == (7168, 61, 256)
    index = json.loads(tree.files[f"{folder}/model.safetensors.index.json"])
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) == 163
    assert (shards[0], shards[-1]) == ("model-00001-of-000163.safetensors", "model-00163-of-000163.safetensors")


def test_the_hubs_checkpoint_is_listed_brought_and_fit_for_re_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(hub, "HUB", tmp_path / "hub")
    repo = hub.HUB / "deepseek-ai" / "DeepSeek-V3-0324"
    repo.mkdir(parents=True)
    files = models.checkpoint(load_profile(repo.name))
    for name, content in files.items():
        (repo / name).write_bytes(content)
    told: list[dict[str, Any]] = []
    asked = {"hub": "huggingface", "repo": "deepseek-ai/DeepSeek-V3-0324", "revision": "", "endpoint": "", "token": ""}
    brought = tmp_path / "brought"
    hub_client._huggingface({**asked, "directory": str(brought), "exclude": [], "dry_run": False}, told.append)
    assert {one["path"]: one["size"] for one in told[0]["files"]} == {name: len(files[name]) for name in files}
    assert {path.name: path.read_bytes() for path in brought.iterdir()} == files
    job = reblock.plan(brought, 64)
    assert json.loads(job.texts["config.json"])["hidden_size"] == 7168 and len(job.weights) == 2
    with pytest.raises(hub.RepositoryNotFoundError, match="has only deepseek-ai/DeepSeek-V3-0324, not other/model"):
        hub.HfApi().model_info("other/model")


CONTENTS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([b"1", b"2", b"3"]))


@given(st.lists(CONTENTS, min_size=1, max_size=5))
def test_common_and_own_together_are_the_whole(contents: list[dict[str, bytes]]) -> None:
    trees = [FileTree(files=dict(files), links=dict.fromkeys(files, "x")) for files in contents]
    common, own = split_common(trees)
    for tree, rest in zip(trees, own, strict=True):
        assert {**common.files, **rest.files} == tree.files
        assert {**common.links, **rest.links} == tree.links
        assert not common.files.keys() & rest.files.keys()


def test_files_links_and_modes_are_written_as_described(tmp_path: Path) -> None:
    tree = FileTree()
    tree.put("/devices/card/vendor", "0x15b3")
    tree.put("/devices/card/again", "0x15b3")
    tree.put("/bin/tool", b"#!/bin/sh\n", 0o755)
    tree.link("/class/net/eth0", "/devices/card")
    tree.folders.add("/empty")
    write(tree, tmp_path)
    assert (tmp_path / "class/net/eth0/vendor").read_text() == "0x15b3\n"
    assert (tmp_path / "class/net/eth0").readlink() == Path("../../devices/card")
    assert (tmp_path / "bin/tool").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "devices/card/again").samefile(tmp_path / "devices/card/vendor")
    assert (tmp_path / "empty").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="trusted attributes need root")
def test_a_layer_carries_what_overlayfs_needs(tmp_path: Path) -> None:
    tree = FileTree(opaque={"/bus"}, borrowed={"/net/a": "/virtual/a"}, einval={"/gids/4", "/gids/5"}, hidden={"/x/y"})
    try:
        write_layer(tree, tmp_path, einval_from="/lo/speed")
    except OSError as failure:
        pytest.skip(f"no trusted attributes here: {failure}")
    assert os.getxattr(tmp_path / "bus", "trusted.overlay.opaque") == b"y"
    assert os.getxattr(tmp_path / "net/a", "trusted.overlay.redirect") == b"/virtual/a"
    assert os.getxattr(tmp_path / "gids/5", "trusted.overlay.redirect") == b"/lo/speed"
    assert (tmp_path / "x/y").is_char_device()


BOOKWORM = Release("debian", "bookworm")


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", BOOKWORM),
        ('NAME="Ubuntu"\nID=ubuntu\nVERSION_CODENAME="noble"\n', Release("ubuntu", "noble")),
        ("ID=fedora\nVERSION_ID=41\n", None),
        ("ID=debian\nPRETTY_NAME=sid\n", None),
        ("", None),
    ],
)
def test_the_release_is_this_machines(text: str, release: Release | None) -> None:
    assert this_release(text) == release


ONE_LINE = """
# deb http://commented.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb https://packages.example/cloud cloud-bookworm main
deb https://download.example/docker bookworm stable
"""
DEB822 = """
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
# a comment
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""


def test_only_the_distributions_own_sources_count_in_either_form() -> None:
    assert sources(BOOKWORM, [ONE_LINE]) == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian-security bookworm-security main",
    ]
    assert sources(BOOKWORM, [DEB822]) == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
    ]


def test_a_mirror_may_be_an_ipv6_address_and_options_may_have_spaces() -> None:
    assert sources(BOOKWORM, ["deb [ arch=amd64 trusted=yes ] http://[2001:db8::1]/debian bookworm main # near"]) == [
        "deb http://[2001:db8::1]/debian bookworm main"
    ]


def test_without_the_release_itself_the_maker_chooses() -> None:
    assert sources(BOOKWORM, ["deb http://mirror.example/security bookworm-security main"]) == []
    assert sources(Release("debian", "trixie"), [ONE_LINE, DEB822]) == []


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for mmdebstrap; caches and PATH are the test's own."""
    if rootfs.this_release() is None:
        pytest.skip("this machine is neither Debian nor Ubuntu")
    program = tmp_path / "bin/mmdebstrap"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("L40S_CACHE", str(tmp_path / "cache"))
    return program


def script(maker: Path, text: str) -> None:
    maker.write_text(f"#!/bin/sh\n{text}\n")
    maker.chmod(0o755)


def test_a_failed_build_tells_why_and_leaves_nothing(maker: Path, tmp_path: Path) -> None:
    script(maker, "echo 'E: cannot reach the mirror' >&2; exit 1")
    said: list[str] = []
    with pytest.raises(NodeError, match="E: cannot reach the mirror"):
        rootfs.ensure(said.append)
    assert "half a minute" in said[0]
    assert rootfs.cached() is None
    assert not [path for path in (tmp_path / "cache/lab/rootfs").iterdir() if path.suffix != ".lock"]


def test_a_made_one_is_found_again(maker: Path) -> None:
    script(maker, 'for word; do case "$word" in */root) mkdir "$word" ;; esac; done')
    assert rootfs.cached() is None
    made = rootfs.ensure(lambda _: None)
    assert made == rootfs.cached()
    script(maker, "exit 1")
    assert rootfs.ensure(lambda _: None) == made
