"""The recipe's patch on the real sglang 0.4.4.post3 from its wheel; the kernels' package, which no index has, is a
stub with the one name that the patch looks for."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.loading.profiles import stack_recipe

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MOE = "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
GEMM = "N=768,K=1536,device_name=NVIDIA_L20,dtype=fp8_w8a8,block_shape=[64, 64].json"
OTHER = "N=768,K=1536,device_name=NVIDIA_L20Y,dtype=fp8_w8a8,block_shape=[128, 128].json"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), "sglang==0.4.4.post3"]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=240)
    return next(folder.glob("*.whl"))


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    """The real sglang, and stubs of the patch's other imports."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    for name, version in (("sgl_kernel", "0.0.5.post4"), ("torch", "2.5.1+cu124"), ("triton", "3.1.0")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    kernel = site / "sgl_kernel"
    kernel.mkdir()
    (kernel / "__init__.py").write_text("")
    (kernel / "common_ops.abi3.so").write_bytes(b"\0_ZN3sm89_dispatch_shape\0")
    return site


@pytest.fixture
def branch(tmp_path: Path) -> Path:
    layers = tmp_path / "branch"
    for folder, name in (
        ("moe/fused_moe_triton/configs", MOE),
        ("quantization/configs", GEMM),
        ("quantization/configs", OTHER),
    ):
        (layers / folder).mkdir(parents=True, exist_ok=True)
        (layers / folder / name).write_text("{}")
    return layers


def patch(site: Path, branch: Path) -> subprocess.CompletedProcess[str]:
    script = stack_recipe("sglang-0.4.4-l40s")[0] / "patch.py"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, str(script), str(branch)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_release_becomes_what_the_stack_says_and_a_second_run_changes_nothing(site: Path, branch: Path) -> None:
    for _ in range(2):
        done = patch(site, branch)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "2 tuned configs; sglang is what the stack's file says\n"
    layers = site / "sglang/srt/layers"
    assert (layers / "moe/fused_moe_triton/configs" / MOE).is_file()
    assert (layers / "quantization/configs" / GEMM).is_file()
    assert not (layers / "quantization/configs" / OTHER).exists()
    changed = (layers / "quantization/fp8_kernel.py").read_text()
    ast.parse(changed)
    assert "key=lambda" not in changed.partition("def w8a8_block_fp8_matmul")[2].partition("\ndef ")[0]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("kernel", "no shared object has sm89_dispatch_shape"),
        ("line", "wanted the line once"),
        ("configs", "no tuned config for NVIDIA_L40S"),
        ("version", "torch is 2.6.0, wanted 2.5.1"),
        ("tiles", "the tiles for SM89 are not in it"),
    ],
)
def test_an_installation_that_is_another_is_named(site: Path, branch: Path, spoil: str, says: str) -> None:
    layers = site / "sglang/srt/layers"
    if spoil == "kernel":
        (site / "sgl_kernel/common_ops.abi3.so").write_bytes(b"another")
    elif spoil == "line":
        (layers / "quantization/fp8_kernel.py").write_text("pass\n")
    elif spoil == "configs":
        for file in branch.rglob("*.json"):
            file.unlink()
    elif spoil == "version":
        (site / "torch-2.5.1+cu124.dist-info/METADATA").write_text(
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n"
        )
    else:
        (layers / "attention/triton_ops/extend_attention.py").write_text("pass\n")
    done = patch(site, branch)
    assert done.returncode == 1
    assert says in done.stdout and not done.stderr
