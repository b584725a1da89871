"""Runs in the engine's own environment: its Triton kernels, compiled for one GPU that is not here.

    python3 compile_kernels.py SM ORDER RESULTS

ORDER: a JSON file of cases as of `KernelCase` (tuning/messages.py). kernels.py and tune.py of templates/ lie beside it.
RESULTS: the file to write: {"versions": ..., "rows": [...]}, a row a compiled kernel with its shared memory (bytes),
registers and spilled bytes as Triton's own ptxas tells them, or why it does not compile.
"""

# mypy: ignore-errors

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_OPS = "sglang.kernels.ops."


def small_kernels(torch: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """What else the engine launched in the profiles of the slice, called as one of 32 ranks calls it."""

    def of(module: str, name: str) -> Any:
        return getattr(importlib.import_module(_OPS + module), name)

    def long(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int64)

    def whole(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.int32)

    def halves(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.bfloat16)

    quantise = of("quantization.fp8_kernel", "per_tensor_quant_mla_fp8")
    yield "quantise for MLA absorb", lambda: quantise(halves(4, 32, 512), torch.zeros(1))
    splits = of("attention.metadata", "get_num_kv_splits_triton")
    yield "KV splits", lambda: splits[(1,)](whole(32), whole(32), 32, 1, 4, 1, 16, 142, MAX_NUM_SEQ=32)
    indices = of("attention.kv_indices", "create_flashinfer_kv_indices_triton")
    yield (
        "KV indices",
        lambda: indices[(32,)](whole(48, 163840), long(32), whole(32), whole(33), None, long(999), 163840),
    )
    embedding = of("embeddings.vocab_parallel_embedding", "_vocab_parallel_embedding_kernel")
    words = (long(32), halves(4040, 7168), halves(32, 7168), 7168, 7168, 0, 4040, 0, 129280, 129280)
    yield "embedding", lambda: embedding[(32, 7)](*words, BLOCK_H=1024, num_warps=8)
    write = of("kvcache.mla_buffer", "set_mla_kv_buffer_kernel")
    parts = (halves(4096, 1, 576), halves(384, 1, 512), halves(384, 1, 64), long(384))
    yield "KV write", lambda: write[(384, 5)](*parts, 0, 576, 512, 64, 512, 64, BLOCK=128, DCP_RANK=0, DCP_WORLD_SIZE=1)
    keys = of("attention.mla_qk_prep", "concat_and_cast_mha_k_triton")
    yield "keys", lambda: keys(halves(384, 4, 192), halves(384, 4, 128), halves(384, 1, 64))
    positions = of("attention.position", "compute_position_triton")
    yield "positions", lambda: positions(whole(4), whole(4), 384)


def row_of(made: Any, sm: int) -> dict[str, Any]:
    """What ptxas says of a compiled kernel's PTX."""
    from triton import knobs

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(made.asm["ptx"])
        ptx.flush()
        words = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name=sm_{sm}", ptx.name, "-o", "/dev/null"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    spills, registers = _SPILLS.search(done.stderr), _REGISTERS.search(done.stderr)
    return {
        "kernel": made.metadata.name,
        "warps": made.metadata.num_warps,
        "shared": int(made.metadata.shared),
        "registers": int(registers[1]) if registers else None,
        "spilled": int(spills[1]) + int(spills[2]) if spills else None,
    }


def main() -> int:
    """0 when everything was tried; a kernel that does not compile is a row."""
    sm, order, results = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    import kernels
    import torch
    import triton
    import tune

    kernels._compiling_for(sm)
    launch, compiled = triton.runtime.jit.JITFunction.run, []

    def run(self, *args, **named):
        compiled.append(launch(self, *args, **named))
        return compiled[-1]

    triton.runtime.jit.JITFunction.run = run
    tune.numbers = lambda shape, dtype, device: torch.zeros(shape, dtype=kernels._dtype(dtype), device=device)

    def calls() -> Iterator[tuple[str, Callable[[], object]]]:
        for case in json.loads(order.read_text()):
            made = case["shown"]
            yield made, lambda case=case: kernels._made(case, torch.device("cpu"), sm).run()
        yield from small_kernels(torch)

    rows = []
    for shown, call in calls():
        compiled.clear()
        wrong = ""
        try:
            call()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"[:300]
        rows += [{"of": shown, **row_of(made, sm)} for made in compiled]
        if wrong or not compiled:
            rows.append({"of": shown, "wrong": wrong or "it launched no Triton kernel"})
    versions = {name: version(name) for name in ("sglang", "torch")} | {"triton": triton.__version__}
    results.write_text(json.dumps({"versions": versions, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
