"""Which degrees an FP8 checkpoint's blocks allow: SGLang's own models decide, and our arithmetic says the same.

The engine's class makes one rank's layers out of the config; its checks are validate_block_quant_shapes for linear
layers, Fp8MoEMethod.create_weights for experts, and each model's own.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from l40s_lab.engine.environment import ensure_engine
from l40s_lab.node.models import config
from orchestrator.loading.profiles import load_profile
from orchestrator.planning.layout import finer_block, obstacles

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

MODELS = ("DeepSeek-V3-0324", "Qwen3-235B-A22B-Instruct-2507-FP8", "MiniMax-M2")
BLOCKS = (128, 64, 32)
DEGREES = (1, 2, 4, 8, 16, 32)
UNSAID = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
"""What the engine reads of these models' configs beside what the lab's have."""
PROFILES = {
    f"{name} {block}x{block}": replace(load_profile(name), block=(block, block)) for name in MODELS for block in BLOCKS
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], str]:
    """The engine's words, '' for none, by model with its block and by degree."""
    folder = tmp_path_factory.mktemp("degrees")
    for name, profile in PROFILES.items():
        (folder / name).mkdir()
        document = {**UNSAID, **config(profile), "num_hidden_layers": profile.dimensions.first_k_dense_replace + 1}
        (folder / name / "config.json").write_text(json.dumps(document))
    asked = [(name, degree) for name in PROFILES for degree in DEGREES]
    (folder / "rows.json").write_text(json.dumps([(str(folder / name), degree) for name, degree in asked]))
    done = subprocess.run(
        [
            *(str(ensure_engine() / "bin" / "python3"), str(Path(__file__).with_name("models_of_sglang.py"))),
            *(str(folder / "rows.json"), str(folder / "said.json")),
        ],
        env={"PATH": "/usr/bin:/bin", "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said: list[str] = json.loads((folder / "said.json").read_text())
    return dict(zip(asked, said, strict=True))


@pytest.mark.parametrize("name", PROFILES)
def test_the_engine_takes_the_degrees_that_we_allow_and_refuses_the_others(
    name: str, refusals: dict[tuple[str, int], str]
) -> None:
    taken = [degree for degree in DEGREES if not refusals[name, degree]]
    ours = [degree for degree in DEGREES if not obstacles(PROFILES[name], degree)]
    assert taken == ours, {degree: refusals[name, degree] for degree in DEGREES}


@pytest.mark.parametrize("model", MODELS)
def test_the_block_that_we_advise_is_one_that_the_engine_takes_and_the_coarser_one_it_refuses(
    model: str, refusals: dict[tuple[str, int], str]
) -> None:
    stock = f"{model} 128x128"
    advised = {degree: finer_block(PROFILES[stock], degree) for degree in DEGREES}
    assert any(advised.values())
    for degree, block in advised.items():
        if block:
            assert "is not divisible by weight quantization block" in refusals[stock, degree]
            assert refusals[f"{model} {block}x{block}", degree] == ""
