"""What a snapshot reads of a virtual environment, through the reader and into the rules' data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.doctor.rules.stacks import Installed, installed
from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.model import packages
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.model.snapshot import Snapshot
from orchestrator.node.look.environment import MOST_BYTES, answer, read_stack
from orchestrator.node.look.reading import read_hardware
from orchestrator.protocol.looks import StackQuestion, TunedFolders
from orchestrator.topology.build import build

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
CONFIG = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"

FOLDERS = ("moe", "by_triton", "linear")


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read(venv: Path, **asked: Any) -> dict[str, Any]:
    tuned = TunedFolders(device="NVIDIA_L40S", **{name: asked.pop(name) for name in FOLDERS if name in asked})
    question = StackQuestion(venv=str(venv), packages=packages.ALL, tuned=tuned, **asked)
    return read_hardware("/", {"stack": partial(read_stack, question)})


def seen(venv: Path, said: dict[str, Any], *, python: bool | None = True) -> Installed | None:
    snapshot = Snapshot(node="n", taken_at=0.0, **said, host={"stack": {"venv": str(venv), "python": python}})
    spec = NodeSpec(name="n", gang="g", node_rank=0, reach=Reach(host="n"))
    return installed(Node(spec, build(snapshot), snapshot, None))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for name in (
        "sglang-0.5.23",
        "sglang_kernel-0.4.10",
        "torch-2.14.1+cu130",
        "nvidia_nccl_cu13-2.30.7",
        "numpy-2.3.5",
    ):
        put(site / f"{name}.dist-info" / "WHEEL", "Wheel-Version: 1.0\n")
    put(site / "sglang" / "__init__.py")
    put(site / "sglang" / "tiles.py", "first\n  if sm89:\nlast\n")
    put(site / "sglang" / "gemm" / CONFIG, "{}")
    put(site / "sglang" / "gemm" / CONFIG.replace("L40S", "L40"), "{}")
    put(site / "sglang" / "moe" / "configs" / "triton_3_8_0" / CONFIG.replace("N=2112,K=7168", "E=257,N=64"), "{}")
    return tmp_path / "venv"


def test_versions_engine_evidence_and_configs(venv: Path) -> None:
    said = read(
        venv, evidence={"sglang/tiles.py": "sm89"}, moe="sglang/moe/configs", by_triton=True, linear="sglang/gemm"
    )
    found = seen(venv, said)
    assert found is not None
    assert found.versions == {
        "sglang": "0.5.23", "sglang-kernel": "0.4.10", "torch": "2.14.1+cu130", "nvidia-nccl-cu13": "2.30.7",
    }  # fmt: skip
    site = f"{venv}/lib/python3.11/site-packages"
    assert found.root == site
    assert said["files"][f"{site}/sglang/tiles.py"] == "  if sm89:"
    assert f"{site}/sglang/gemm/{CONFIG}" in said["files"]
    assert not [path for path in said["files"] if "L40," in path]
    assert [path for path in said["files"] if "triton_3_8_0" in path]


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"\0" * 200_000 + b"_Z19sm89_dispatch_shapeI\0", "sm89_dispatch_shape"),
        (b"\x7fELF sm90", "9 bytes without it"),
        (b"", "0 bytes without it"),
    ],
)
def test_compiled_evidence_is_searched_and_not_sent(venv: Path, content: bytes, kept: str) -> None:
    file = venv / "lib/python3.11/site-packages/sgl_kernel/common_ops.abi3.so"
    file.parent.mkdir()
    file.write_bytes(content)
    evidence = {"sgl_kernel/common_ops.abi3.so": "sm89_dispatch_shape", "sgl_kernel/none.so": "x"}
    said = read(venv, evidence=evidence)
    assert said["files"][str(file)] == kept
    assert not [path for path in (*said["files"], *said["errors"]) if path.endswith("none.so")]


def test_a_source_without_its_evidence_shows_its_beginning(venv: Path) -> None:
    said = read(venv, evidence={"sglang/tiles.py": "sm90", "sglang/none.py": "sm90"})
    site = f"{venv}/lib/python3.11/site-packages"
    assert said["files"][f"{site}/sglang/tiles.py"] == "first\n  if sm89:\nlast\n"
    assert f"{site}/sglang/none.py" not in said["files"]


def test_a_source_install_is_found_by_its_pth_file(venv: Path, tmp_path: Path) -> None:
    site = venv / "lib" / "python3.11" / "site-packages"
    (site / "sglang").rename(tmp_path / "sglang")
    put(site / "__editable__.sglang.pth", f"{tmp_path}\n")
    found = seen(venv, read(venv))
    assert found is not None
    assert found.root == str(tmp_path)


def test_an_environment_behind_a_link_is_read_at_its_own_place(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(venv)
    found = seen(tmp_path / "link", read(tmp_path / "link"))
    assert found is not None
    assert found.versions["sglang"] == "0.5.23"
    assert found.root


def test_no_environment_leaves_no_trace(tmp_path: Path) -> None:
    said = read(tmp_path / "nothing")
    assert said == {"files": {}, "links": {}, "errors": {}}
    absent = seen(tmp_path / "nothing", said, python=False)
    assert absent is not None
    assert not absent.there
    unread = seen(tmp_path / "nothing", said, python=None)
    assert unread is not None
    assert unread.there, "what could not be read is not called missing"


def test_a_checkpoint_and_an_environment(tmp_path: Path) -> None:
    model, venv = tmp_path / "model", tmp_path / "venv"
    model.mkdir()
    (venv / "bin").mkdir(parents=True)
    (model / "config.json").write_text('{"hidden_size": 1}')
    (venv / "bin" / "python3").write_text("")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n")
    told = answer({"model_path": str(model), "venv": str(venv)})
    assert json.loads(told["config"]) == {"hidden_size": 1}
    assert (told["config_error"], told["engine"], told["engine_python"]) == ("", True, "3.11.2")
    assert told["vocabularies"] is False
    (venv / "vocabularies").mkdir()
    assert answer({"model_path": "/", "venv": str(venv)})["vocabularies"] is True
    assert told["glibc"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: None, (None, "ENOENT")),
        (lambda path: path.write_bytes(b"x" * (MOST_BYTES + 1)), (None, "EFBIG")),
        (lambda path: path.write_bytes(b"\xff{}"), ("\ufffd{}", "")),
        (os.mkdir, (None, "ENXIO")),
        (os.mkfifo, (None, "ENXIO")),
    ],
    ids=["nothing", "too long", "no text", "a folder", "a pipe"],
)
def test_odd_files(tmp_path: Path, make: Callable[[Path], object], told: tuple[str | None, str]) -> None:
    make(tmp_path / "config.json")
    found = answer({"model_path": str(tmp_path), "venv": str(tmp_path / "no")})
    assert (found["config"], found["config_error"]) == told
    assert (found["engine"], found["engine_python"]) == (False, "")
