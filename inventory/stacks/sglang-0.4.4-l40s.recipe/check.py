"""Is the image what the stack's file says? Reads files only, so that it runs where no GPU is."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import sys

VERSIONS = {"sglang": "0.4.4.post1", "sgl-kernel": "0.0.5.post3", "torch": "2.5.1", "triton": "3.1.0"}
TUNED = {
    "srt/layers/quantization/configs": "N=768,K=1536,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json",
    "srt/layers/moe/fused_moe_triton/configs": (
        "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
    ),
}
"""One tuning file of each kind, from commit 03d34078."""


def main() -> int:
    wrong = []
    for package, wanted in VERSIONS.items():
        found = importlib.metadata.version(package)
        if found.partition("+")[0] != wanted:
            wrong.append(f"{package} is {found}, wanted {wanted}")
    sglang = importlib.util.find_spec("sglang")
    root = pathlib.Path(((sglang and sglang.submodule_search_locations) or [""])[0])
    wrong += [f"{folder}/{name} is missing" for folder, name in TUNED.items() if not (root / folder / name).is_file()]
    origin = importlib.metadata.distribution("sgl-kernel").read_text("direct_url.json") or ""
    if "file:///tmp/wheels/" not in origin:
        wrong.append("sgl-kernel is a wheel from an index and not the one that was built here")
    print("\n".join(wrong) or "as the stack's file says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
