"""Writes docs/kernels-sm89.md: the engine's Triton kernels, compiled for an L40S without a GPU.

    python scripts/kernel_table.py [--triton DIR]

DIR: where the wheel of the Triton that the CUDA stack has is unpacked; else that of the lab's engine compiles. The
kernels are SGLang's own, out of the lab's environment of the same version, at the shapes of one rank of the three usual
plans.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from l40s_lab.engine.environment import ensure_engine
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.resources import data_dir
from orchestrator.protocol.planned import Layout
from orchestrator.tuning.kernels import kernels_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "kernels-sm89.md"
NO_TRITON = ("channel", "absorb", "unknown")
SM, SHARED = 89, 101_376
GPU, STACK = "NVIDIA L40S", "sglang-0.5.23"
PLANS = (("DeepSeek-V3-0324-Block64x64", 32, 1), ("DeepSeek-R1-Channel-INT8", 32, 1), ("DeepSeek-V3-0324", 8, 4))
"""Model, tensor and pipeline parallel degree."""
HEAD = """# Triton's kernels on an L40S, compiled without one

<!-- made by scripts/kernel_table.py -->
Compiled on {day} for sm_89 by Triton {triton} and its ptxas, out of SGLang {sglang} with torch {torch}: what
profiles of a full-depth rank show, and INT8's, at the shapes of one rank of
{plans}.

An L40S gives a block {shared:,} bytes of shared memory. Compiling proves that a kernel can be loaded there, not that it
is right or fast: `l40s-deploy stack check` runs it.

{summary}

| kernel | of | shapes | compiles | shared memory, most bytes | registers, most | spilled bytes, most |
|---|---|---|---|---|---|---|
"""
TAIL = """
Not here: torch.compile's own kernels (`triton_per_fused_...`), which inductor writes on the GPU; CUDA kernels
(FlashInfer, sglang-kernel, cuBLAS, NCCL), of which `l40s-deploy stack check --arch sm_89` says what they hold.
"""


def cases() -> list[dict[str, Any]]:
    """Of all plans, each with the name that the page groups it by."""
    lookup = engine_of(load_stack(STACK)).tuned
    made: list[dict[str, Any]] = []
    for model, tensor, pipeline in PLANS:
        layout = Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, nnodes=4, gpus_per_node=8)
        of_plan = kernels_of(load_profile(model), layout, lookup, gpu=GPU)
        made += [{**asdict(case), "shown": case.name} for case in of_plan if case.kernel not in NO_TRITON]
    return made


def compiled(triton: str) -> dict[str, Any]:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("kernels.py", "tune.py"):
            shutil.copy(data_dir("templates") / name, folder)
        shutil.copy(Path(__file__).with_name("compile_kernels.py"), folder)
        (folder / "order.json").write_text(json.dumps(cases()))
        environment = {**os.environ, "PYTHONPATH": triton, "TRITON_CACHE_DIR": str(folder / "cache"),
                       "SGLANG_USE_CPU_ENGINE": "1"}  # fmt: skip
        command = [str(ensure_engine() / "bin/python3"), "compile_kernels.py", str(SM), "order.json", "results.json"]
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=1800)
        results: dict[str, Any] = json.loads((folder / "results.json").read_text())
        return results


def most(rows: list[dict[str, Any]], key: str) -> str:
    known = [row[key] for row in rows if row[key] is not None]
    return f"{max(known):,}" if len(known) == len(rows) else "not read"


def line(kernel: str, of: str, rows: list[dict[str, Any]]) -> str:
    cells = [f"`{kernel}`", of, str(len(rows)), "yes", *(most(rows, key) for key in ("shared", "registers", "spilled"))]
    return f"| {' | '.join(cells)} |\n"


def page(results: dict[str, Any]) -> str:
    rows = [row for row in results["rows"] if "wrong" not in row]
    wrong = [row for row in results["rows"] if "wrong" in row]
    over = [row for row in rows if row["shared"] > SHARED]
    spilling = [row for row in rows if row["spilled"]]
    summary = f"{len(rows)} compiled, {len(wrong)} not; {len(over)} need more shared memory; {len(spilling)} spill."
    plans = ", ".join(f"{model} at TP{tensor}" for model, tensor, _ in PLANS)
    text = HEAD.format(day=date.today().isoformat(), **results["versions"], plans=plans, shared=SHARED, summary=summary)
    kinds = dict.fromkeys((row["kernel"], row["of"]) for row in rows)
    text += "".join(line(*kind, [row for row in rows if (row["kernel"], row["of"]) == kind]) for kind in kinds)
    text += "".join(f"| ? | {row['of']} | 1 | no: {row['wrong'].replace('|', '/')} | | | |\n" for row in wrong)
    return text + TAIL


def main() -> int:
    """0 when the page is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", default="", metavar="DIR")
    PAGE.write_text(page(compiled(parser.parse_args().triton)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
