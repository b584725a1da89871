"""templates/kernels.py with the engine's own kernels and no GPU: the interpreter runs small shapes, Triton compiles for
an L40S. What is planted wrong is caught, kernel by kernel; int8 products go to a stand-in of sgl_kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.kinds import WITH_ITS_TORCH

from l40s_lab.engine.environment import ensure_engine
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_stack
from orchestrator.loading.resources import data_dir
from orchestrator.protocol.message import parsed
from orchestrator.tuning.kernels import KernelResult, judged
from orchestrator.tuning.messages import KernelCase, KernelLine, KernelsOrder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), WITH_ITS_TORCH]

ENGINE = load_stack("sglang-0.5.23")
CASES = (
    KernelCase(id=0, name="own", kernel="triton", batch=128, n=256, k=256, block=(64, 64)),
    KernelCase(id=1, name="extend", kernel="extend", batch=24, heads=4, kv_heads=4, qk=192, v=128),
    KernelCase(id=2, name="absorbed", kernel="extend", batch=24, heads=4, kv_heads=1, qk=576, v=512, cached=True),
    KernelCase(id=3, name="decode", kernel="decode", batch=2, heads=4, kv_heads=1, qk=576, v=512, cached=True),
    KernelCase(id=4, name="block", kernel="linear", dtype="fp8_w8a8", batch=4, n=128, k=256, block=(64, 64)),
    KernelCase(id=5, name="moe", kernel="moe", dtype="fp8_w8a8", batch=4, e=4, n=64, k=128, top_k=2, block=(64, 64)),
    KernelCase(id=11, name="bf16 moe", kernel="moe", batch=4, e=4, n=32, k=128, top_k=2, built_in=True),
    KernelCase(id=6, name="bf16 absorb", kernel="absorb", batch=4, heads=4, n=512, k=128),
    KernelCase(id=8, name="int8", kernel="channel", dtype="int8_w8a8", batch=4, n=128, k=256),
    KernelCase(id=9, name="large", kernel="linear", dtype="fp8_w8a8", batch=1024, n=768, k=1536, block=(64, 64)),
    KernelCase(id=10, name="strange", kernel="unknown"),
)
STAND_IN = """import torch
def int8_scaled_mm(a, b, a_scale, b_scale, dtype, bias=None):
    return (a.float() @ b.float() * a_scale * b_scale.T).to(dtype)
"""
TILED = {0, 1, 2, 3, 4, 5, 9, 11}


def check(folder: Path, cases: tuple[KernelCase, ...], plant: str = "", *, python: str = "") -> list[KernelResult]:
    order = KernelsOrder(device="cpu", sm=89, shared=101376, case_s=300.0, cases=cases)
    (folder / "order.json").write_text(json.dumps(order.as_json()))
    for name in ("kernels.py", "tune.py"):
        shutil.copy(data_dir("templates") / name, folder)
    done = subprocess.run(
        [python or str(ensure_engine() / "bin/python3"), "kernels.py", "1", "order.json"],
        cwd=folder,
        env={**os.environ, "L40S_CHECK_PLANT": plant},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    lines = [KernelLine.read(parsed(line)) for line in done.stdout.splitlines()]
    said = [line for line in lines if isinstance(line, KernelLine)]
    return list(judged(cases, said, engine_of(ENGINE).watched.causes, limit=101376))


@pytest.mark.turns(of="kernels: right is right, wrong is caught")
def test_every_kernel_is_right_or_says_why_it_was_not_run(tmp_path: Path) -> None:
    (tmp_path / "sgl_kernel.py").write_text(STAND_IN)
    found = {one.case.id: one for one in check(tmp_path, CASES)}
    verdicts = {place: one.verdict.value for place, one in found.items()}
    not_run = dict.fromkeys((9, 10, 11), "not-run")
    assert verdicts == {**dict.fromkeys((0, 1, 2, 3, 4, 5, 6, 8), "right"), **not_run}, found
    assert all(0 <= (one.error or 0) <= 0.02 and one.us is None for one in found.values())
    assert (
        "interpreter" in found[3].text
        and "too large" in found[9].text
        and "how to call" in found[10].text
        and "bfloat16" in found[11].text
    )
    assert {place for place, one in found.items() if one.shared} == TILED
    assert all(one.shared <= 101376 for one in found.values())


@pytest.mark.turns(of="kernels: right is right, wrong is caught")
@pytest.mark.parametrize(
    ("plant", "verdicts"),
    [
        ("wrong", {0: "wrong", 2: "wrong", 3: "wrong", 6: "wrong", 8: "wrong"}),
        ("sm80", {0: "fails", 2: "fails", 3: "right", 6: "right", 8: "right"}),
    ],
)
def test_what_is_planted_is_caught(tmp_path: Path, plant: str, verdicts: dict[int, str]) -> None:
    """sm80: the tiles that extend attention takes on an A100 do not fit on an L40S."""
    (tmp_path / "sgl_kernel.py").write_text(STAND_IN)
    found = {one.case.id: one for one in check(tmp_path, tuple(c for c in CASES if c.id in verdicts), plant)}
    assert {place: one.verdict.value for place, one in found.items()} == verdicts, found
    causes = {place: one.cause.id for place, one in found.items() if one.cause is not None}
    assert causes == ({} if plant == "wrong" else dict.fromkeys((0, 2), "SM89-TRITON-TILES"))


@pytest.mark.turns
@pytest.mark.parametrize("standin", [True, False])
def test_an_environment_without_torch_is_a_stand_in_or_lacks_it(tmp_path: Path, standin: bool) -> None:
    if standin:
        (tmp_path / "standin.py").write_text("")
        (found,) = check(tmp_path, CASES[:1], python=sys.executable)
        assert found.verdict.value == "not-run" and "stand-in" in found.text
    else:
        with pytest.raises(AssertionError, match="No module named 'torch'"):
            check(tmp_path, CASES[:1], python=sys.executable)
