"""A plugin of SGLang's for tests: its speculative decoding on a CPU, by the Triton kernels of its GPUs.

SGLang 0.5.23 drafts on a CPU with kernels of sglang-kernel's CPU build, which no index has, and on Intel's AMX alone
(speculative/draft_utils.py: "EAGLE is not supported in attention backend torch_native"). Beside each of those kernels
stands one in Triton: in Triton's interpreter that one runs here. It computes wrongly in bfloat16: take float16.
"""

from __future__ import annotations

import importlib

_TRITON_TOO = ("srt.mem_cache.allocation", "srt.speculative.eagle_utils", "kernels.ops.kvcache.cache_move",
               "kernels.ops.speculative.eagle", "kernels.ops.speculative.cache_locs",
               "kernels.ops.speculative.spec_tree")  # fmt: skip
_BY_ANOTHER_DEVICE = ("kernels.ops.speculative.cache_locs", "kernels.ops.speculative.spec_tree")
"""Here a GPU's branch takes a CUDA kernel, and that of Intel's GPUs a Triton kernel."""


def register() -> None:
    """Called by SGLang in every process it starts."""
    import torch

    torch.cuda.synchronize = lambda *_: None
    for name in _TRITON_TOO:
        importlib.import_module(f"sglang.{name}")._is_cpu = False  # type: ignore[attr-defined]
    for name in _BY_ANOTHER_DEVICE:
        importlib.import_module(f"sglang.{name}")._is_xpu = True  # type: ignore[attr-defined]
