"""An engine that takes a Hopper GPU for an L40S, wherever this folder is in PYTHONPATH and POSE names a folder.

What is asked says L40S: capability (8, 9), name, 142 multiprocessors, 45 GiB, 101,376 bytes of shared memory a block.
What runs is real: Triton writes PTX for sm_89, which its own ptxas assembles for sm_90, and CUDA that is compiled on
the spot goes as PTX for compute_89 to the driver. C++ libraries ask the driver and still see 9.0, and who launches
cooperatively gets no more room than there is. Kernels have caches of their own below POSE, and POSE/seen.jsonl gets
a line for each hook that took hold, each Triton kernel that was loaded and each library that must not be.
POSE_PLANT=sm80 gives the engine's extend attention the tiles of an A100.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

POSE = Path(os.environ.get("POSE", ""))
MAJOR, MINOR = 8, 9
SHARED, MULTIPROCESSORS = 101_376, 142
ASKED = {
    "major": MAJOR,
    "minor": MINOR,
    "name": "NVIDIA L40S",
    "multi_processor_count": MULTIPROCESSORS,
    "total_memory": 45 << 30,
    "shared_memory_per_block_optin": SHARED,
    "shared_memory_per_multiprocessor": 102_400,
    "L2_cache_size": 96 << 20,
}
RUNS_ON = "sm_90"
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_JIT_CACHE_DIR": "jit",
}
_FOR = re.compile(r"^\.target (sm_\w+)", re.MULTILINE)
_assembling = threading.local()


def seen(**line: Any) -> None:
    """One line, whole."""
    with (POSE / "seen.jsonl").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **line}) + "\n")


class Asked:
    """A device's properties, but for what an L40S has of its own."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return ASKED[name] if name in ASKED else getattr(self._real, name)


def of_torch(cuda: Any) -> None:
    """Name and capability are read off the properties."""
    real = cuda.get_device_properties
    cuda.get_device_properties = lambda *words, **named: Asked(real(*words, **named))


def of_memory(memory: Any) -> None:
    """What is free is real: somebody else holds the rest."""
    real = memory.mem_get_info

    def mem_get_info(*words: Any, **named: Any) -> tuple[int, int]:
        free, total = real(*words, **named)
        return free, min(total, ASKED["total_memory"])

    memory.mem_get_info = mem_get_info


def of_triton_driver(driver: Any) -> None:
    """What it compiles for, and what a block may take."""
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]

    driver.CudaDriver.get_current_target = lambda _: GPUTarget("cuda", 10 * MAJOR + MINOR, 32)
    begin = driver.CudaUtils.__init__

    def begun(self: Any) -> None:
        begin(self)
        properties, load = self.get_device_properties, self.load_binary

        def get_device_properties(device: int) -> dict[str, Any]:
            found = properties(device)
            return {**found, "max_shared_mem": SHARED, "multiprocessor_count": MULTIPROCESSORS}

        def load_binary(name: str, binary: Any, shared: int, device: int) -> Any:
            loaded = load(name, binary, shared, device)
            seen(kernel=name, shared=shared, registers=loaded[2], spilled=loaded[3])
            return loaded

        self.get_device_properties, self.load_binary = get_device_properties, load_binary

    driver.CudaUtils.__init__ = begun


def of_triton_compiler(compiler: Any) -> None:
    """Its PTX is for sm_89; only ptxas is told what the GPU is."""
    name_of, assemble = compiler.sm_arch_from_capability, compiler.CUDABackend.make_cubin

    def sm_arch_from_capability(capability: int) -> str:
        return RUNS_ON if getattr(_assembling, "now", False) else name_of(capability)

    def make_cubin(self: Any, source: str, metadata: Any, *words: Any, **named: Any) -> Any:
        _assembling.now = True
        try:
            made = assemble(self, source, metadata, *words, **named)
        finally:
            _assembling.now = False
        target = _FOR.search(source)
        seen(assembled=metadata["name"], ptx_for=target and target[1], shared=metadata["shared"])
        return made

    compiler.sm_arch_from_capability, compiler.CUDABackend.make_cubin = sm_arch_from_capability, make_cubin


def as_ptx(flags: Sequence[str]) -> list[str]:
    """nvcc's flags, with PTX in the place of machine code."""
    return [re.sub(r"code=sm_89\b", "code=compute_89", flag) for flag in flags]


def of_jit(toolchain: Any) -> None:
    """SGLang's own CUDA kernels."""
    real = toolchain.target_flags
    toolchain.target_flags = lambda: as_ptx(real())


def of_flashinfer(context: Any) -> None:
    """FlashInfer's."""
    real = context.CompilationContext.get_nvcc_flags_list
    context.CompilationContext.get_nvcc_flags_list = lambda *words, **named: as_ptx(real(*words, **named))


def of_attention(attention: Any) -> None:
    """As an engine did that did not know an L40S's room."""
    if os.environ.get("POSE_PLANT") == "sm80":
        attention.CUDA_CAPABILITY = (8, 0)
    seen(attention_for=getattr(attention, "CUDA_CAPABILITY", None))


def of_deep_gemm(configurer: Any) -> None:
    """Its kernels are Hopper's."""
    seen(deep_gemm=configurer.ENABLE_JIT_DEEPGEMM)


def unwanted(module: Any) -> None:
    """Loaded, though an L40S could not."""
    seen(unwanted=module.__name__)


HOOKS: dict[str, Callable[[Any], None]] = {
    "torch.cuda": of_torch,
    "torch.cuda.memory": of_memory,
    "triton.backends.nvidia.driver": of_triton_driver,
    "triton.backends.nvidia.compiler": of_triton_compiler,
    "sglang.kernels.jit.utils.compile.toolchain": of_jit,
    "flashinfer.compilation_context": of_flashinfer,
    "sglang.kernels.ops.attention.extend_attention": of_attention,
    "sglang.srt.layers.deep_gemm_wrapper.configurer": of_deep_gemm,
    "deep_gemm": unwanted,
}


class Hooks(MetaPathFinder):
    """Each module's hook runs as soon as the module was."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        hook = HOOKS.get(fullname)
        spec = PathFinder.find_spec(fullname, path) if hook is not None else None
        if hook is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            hook(module)
            seen(hooked=fullname)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("POSE"):
    POSE.mkdir(parents=True, exist_ok=True)
    os.environ |= {name: str(POSE / folder) for name, folder in CACHES.items()}
    sys.meta_path.insert(0, Hooks())
