"""A re-blocked checkpoint in the real SGLang's loader: its config, its file reader, its block check, its
parameters that cut a rank's part, and its own dequantisation. The matrix kernels are not run: on a CPU they
need AMX, and this suite has no GPU.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.kinds import SAME_AS_THE_ENGINES

from l40s_lab.engine.environment import ensure_engine
from orchestrator.checkpoint.on_node.reblock import plan, reblock

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(2400),
    SAME_AS_THE_ENGINES,
]

RANKS = 32
COLUMN = ("model.layers.0.mlp.gate_proj.weight", 2048, 256)
ROW = ("model.layers.0.mlp.down_proj.weight", 256, 2048)
CROPPED = ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 576, 200)

ASK = """
import glob, json, os, sys, types
import torch
from sglang.srt.layers.parameter import BlockQuantScaleParameter, ModelWeightParameter
from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from sglang.srt.layers.quantization.fp8_utils import block_quant_dequant
from sglang.srt.model_loader.weight_utils import safetensors_weights_iterator

request = json.load(sys.stdin)
ranks = request["ranks"]

class Copy:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as file:
            self.config = Fp8Config.from_config(json.load(file)["quantization_config"])
        self.block = self.config.weight_block_size
        self.tensors = dict(safetensors_weights_iterator(sorted(glob.glob(folder + "/*.safetensors"))))

    def whole(self, name):
        return block_quant_dequant(self.tensors[name], self.tensors[name + "_scale_inv"], self.block, torch.float32)

    def refusal(self, rows, columns, column_parallel):
        layer = types.SimpleNamespace(tp_group=types.SimpleNamespace(world_size=ranks))
        out = rows // ranks if column_parallel else rows
        into = columns if column_parallel else columns // ranks
        try:
            Fp8LinearMethod.validate_block_quant_shapes(layer, self.config, columns, into, rows, out, [out])
        except ValueError as refused:
            return str(refused)
        return ""

    def part(self, name, rank, column_parallel):
        def cut(kind, tensor):
            shape = list(tensor.shape)
            shape[0 if column_parallel else 1] //= ranks
            empty = torch.empty(shape, dtype=tensor.dtype)
            parameter = kind(data=empty, input_dim=1, output_dim=0, weight_loader=None)
            load = parameter.load_column_parallel_weight if column_parallel else parameter.load_row_parallel_weight
            load(tensor, tp_rank=rank)
            return parameter.data
        weight = cut(ModelWeightParameter, self.tensors[name])
        scale = cut(BlockQuantScaleParameter, self.tensors[name + "_scale_inv"])
        return block_quant_dequant(weight, scale, self.block, torch.float32)

old, new = Copy(request["old"]), Copy(request["new"])
answer = {"blocks": [old.block, new.block], "whole": {}, "parts": {}, "refusals": {}}
for name, rows, columns in request["tensors"]:
    answer["whole"][name] = torch.equal(old.whole(name), new.whole(name))
for (name, rows, columns), column_parallel in ((request["column"], True), (request["row"], False)):
    answer["refusals"][name] = [copy.refusal(rows, columns, column_parallel) for copy in (old, new)]
    pieces = [new.part(name, rank, column_parallel) for rank in range(ranks)]
    answer["parts"][name] = torch.equal(torch.cat(pieces, 0 if column_parallel else 1), old.whole(name))
print(json.dumps(answer))
"""


def test_the_loader_takes_32_ranks_of_it_and_every_part_dequantises_to_the_originals_values(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    make(old)
    reblock(plan(old, 64), new, jobs=1, report=lambda _: None)
    request = {"old": str(old), "new": str(new), "ranks": RANKS, "tensors": [COLUMN, ROW, CROPPED]}
    said = ask({**request, "column": COLUMN, "row": ROW})
    assert said["blocks"] == [[128, 128], [64, 64]]
    assert said["whole"] == dict.fromkeys((COLUMN[0], ROW[0], CROPPED[0]), True)
    assert said["parts"] == dict.fromkeys((COLUMN[0], ROW[0]), True)
    for before, after in said["refusals"].values():
        assert "not divisible by weight quantization block" in before
        assert after == ""


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Run the code in the engine's own environment."""
    done = subprocess.run(
        [str(ensure_engine() / "bin" / "python3"), "-c", ASK],
        input=json.dumps(request),
        env={"PATH": "/usr/bin:/bin", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
    return answer


def make(folder: Path) -> None:
    """Three FP8 matrices of all byte values but NaN, with a scale of its own for every block."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    header: dict[str, Any] = {}
    data = b""
    for name, rows, columns in (COLUMN, ROW, CROPPED):
        values = rng.integers(0, 127, rows * columns, dtype=np.uint8) | (
            rng.integers(0, 2, rows * columns, dtype=np.uint8) << 7
        )
        scales = rng.random((-(-rows // 128), -(-columns // 128)), dtype=np.float32)
        for key, dtype, shape, content in (
            (f"{name}_scale_inv", "F32", list(scales.shape), scales.tobytes()),
            (name, "F8_E4M3", [rows, columns], values.tobytes()),
        ):
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    quantisation = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantisation}))
