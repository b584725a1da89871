"""Memory is bounded by the number of tensors, never by their size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_KIB = 200 * 1024
CHILD = """
import sys
from pathlib import Path
from orchestrator.checkpoint.on_node.reblock import plan, reblock
from orchestrator.checkpoint.on_node.prove import prove
job = plan(Path(sys.argv[1]), 64)
reblock(job, Path(sys.argv[2]), jobs=4, report=lambda now: None)
prove(job, Path(sys.argv[2]), jobs=4, report=lambda now: None)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def make(directory: Path, shapes: dict[str, tuple[int, int]], shards: int) -> None:
    """A checkpoint of zeros that takes little disk: its weights are holes."""
    directory.mkdir()
    weight_map: dict[str, str] = {}
    names = list(shapes)
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:06d}.safetensors"
        header: dict[str, object] = {}
        at = 0
        for name in names[number::shards]:
            rows, columns = shapes[name]
            grid = (-(-rows // 128), -(-columns // 128))
            for tensor, dtype, shape, width in (
                (f"{name}_scale_inv", "F32", grid, 4),
                (name, "F8_E4M3", (rows, columns), 1),
            ):
                size = shape[0] * shape[1] * width
                header[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
                weight_map[tensor] = file
                at += size
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + at)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("shapes", "shards"),
    [
        ({"model.layers.0.mlp.up_proj.weight": (32768, 8192), "model.layers.1.mlp.up_proj.weight": (576, 8192)}, 1),
        (
            {
                f"model.layers.{layer}.mlp.experts.{expert}.{kind}_proj.weight": (8, 8)
                for layer in range(3, 62)
                for expert in range(256)
                for kind in ("gate", "up", "down")
            },
            163,
        ),
    ],
    ids=["one large matrix", "as many tensors as DeepSeek-V3 has"],
)
def test_peak_memory(tmp_path: Path, shapes: dict[str, tuple[int, int]], shards: int) -> None:
    make(tmp_path / "a", shapes, shards)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "a"), str(tmp_path / "b")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert int(child.stdout) < LIMIT_KIB
