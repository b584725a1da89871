"""Puts the tuned configs and the changed line of branch l40s-dsfp8 into an installed sglang, and checks the result.

argv: the branch's srt/layers. Reads and writes files only, so that it runs where no GPU is. Run again, it changes
nothing. Exit code 1 with every reason where the installation is not what the stack's file says.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import shutil
import sys

VERSIONS = {"sglang": "0.4.4.post3", "sgl-kernel": "0.0.5.post4", "torch": "2.5.1", "triton": "3.1.0"}
CONFIGS = ("quantization/configs", "moe/fused_moe_triton/configs")
"""Folders of tuned kernel configs below srt/layers."""
GPUS = ("NVIDIA_L40S", "NVIDIA_L20")
FILE = "quantization/fp8_kernel.py"
OLD = "config = configs[min(configs.keys(), key=lambda x: abs(x - M))]"
NEW = "config = configs[min([(abs(k - M), k) for k in configs])[1]]"
"""The nearest tuned batch size, written so that torch.compile can trace it: it can't follow min(key=...)."""
TILES = "attention/triton_ops/extend_attention.py", "CUDA_CAPABILITY[1] == 9"
DISPATCH = b"sm89_dispatch_shape"
"""Part of a mangled name in sgl-kernel's shared object: the int8 GEMM for compute capability 8.9."""


def installed(package: str) -> pathlib.Path:
    """The package's folder, found without importing it."""
    spec = importlib.util.find_spec(package)
    places = list((spec and spec.submodule_search_locations) or [])
    if not places:
        sys.exit(f"{package} is not installed here")
    return pathlib.Path(places[0])


def copy_configs(source: pathlib.Path, layers: pathlib.Path) -> int:
    """Copy every tuned config for these GPUs; returns how many there are."""
    count = 0
    for folder in CONFIGS:
        for file in sorted((source / folder).glob("*.json")):
            if any(f"device_name={gpu}," in file.name or file.name.endswith(f"device_name={gpu}.json") for gpu in GPUS):
                shutil.copyfile(file, layers / folder / file.name)
                count += 1
    return count


def change_line(layers: pathlib.Path) -> str:
    """Change the one line in FILE; returns what is wrong, '' for nothing."""
    file = layers / FILE
    text = file.read_text("utf-8")
    if text.count(OLD) == 1:
        file.write_text(text.replace(OLD, NEW), "utf-8")
        return ""
    return "" if NEW in text else f"{file}: wanted the line once: {OLD}"


def wrong_versions() -> list[str]:
    """Packages of another version than the stack's."""
    found = {package: importlib.metadata.version(package).partition("+")[0] for package in VERSIONS}
    return [f"{name} is {found[name]}, wanted {wanted}" for name, wanted in VERSIONS.items() if found[name] != wanted]


def main() -> int:
    source, layers = pathlib.Path(sys.argv[1]), installed("sglang") / "srt/layers"
    wrong = wrong_versions()
    count = copy_configs(source, layers)
    if not count:
        wrong.append(f"{source}: no tuned config for {' or '.join(GPUS)}")
    wrong += filter(None, [change_line(layers)])
    tiles, text = TILES
    if text not in (layers / tiles).read_text("utf-8"):
        wrong.append(f"{layers / tiles}: the tiles for SM89 are not in it: {text}")
    if not any(DISPATCH in file.read_bytes() for file in installed("sgl_kernel").rglob("*.so")):
        wrong.append(f"sgl-kernel: no shared object has {DISPATCH.decode()}, the int8 GEMM for SM89")
    print("\n".join(wrong) or f"{count} tuned configs; sglang is what the stack's file says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
