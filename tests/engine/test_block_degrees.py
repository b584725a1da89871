"""Which degrees an FP8 checkpoint's blocks allow: the engines' own models decide, and our arithmetic says the same.

The engine's class makes one rank's layers out of the config; SGLang's checks are validate_block_quant_shapes for linear
layers, Fp8MoEMethod.create_weights for experts, and each model's own; vLLM's are validate_fp8_block_shape and
validate_fp8_block_shape_moe.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.engine.kinds import SAME_AS_THE_ENGINES

from l40s_lab.engine.environment import STACKS, ensure_engine
from l40s_lab.node.models import config
from orchestrator.loading.profiles import load_profile
from orchestrator.model.profile import ModelProfile
from orchestrator.planning.layout import finer_block, obstacles

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    SAME_AS_THE_ENGINES,
]

STOCK = "DeepSeek-V3-0324"
MODELS = (STOCK, "Qwen3-235B-A22B-Instruct-2507-FP8", "MiniMax-M2")
REPORTED = {
    "DeepSeek-V4-Pro's experts": (3072, 16, 192),  # vllm-project/vllm#40955, #42384
    "Step-3.5-Flash's shared expert": (1280, 4, 320),  # sgl-project/sglang#26107
}
"""Width, degree, and the share of it that an engine was reported to refuse in blocks of 128; here of all experts of a
DeepSeek-V3: no profile has these models."""
BLOCKS = (128, 64, 32)
DEGREES = (1, 2, 4, 8, 16, 32)
UNSAID = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rotary_dim": 64}
"""What the engine reads of these models' configs beside what the lab's have."""
PROFILES = {
    f"{name} {block}x{block}": replace(load_profile(name), block=(block, block)) for name in MODELS for block in BLOCKS
} | {
    f"{name} {block}x{block}": replace(
        load_profile(STOCK),
        block=(block, block),
        dimensions=replace(load_profile(STOCK).dimensions, moe_intermediate_size=width),
    )
    for name, (width, _, _) in REPORTED.items()
    for block in BLOCKS[:2]
}


FINEST_OF_VLLM = 32


@dataclass(frozen=True)
class Refusals:
    """said: the engine's words, '' for none, by model with its block and by degree."""

    engine: str
    said: Mapping[tuple[str, int], str]


@pytest.fixture(scope="module", params=["sglang", pytest.param("vllm", marks=pytest.mark.long)])
def refusals(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Refusals:
    engine = str(request.param)
    folder = tmp_path_factory.mktemp("degrees")
    for name, profile in PROFILES.items():
        (folder / name).mkdir()
        document = {**UNSAID, **config(profile), "num_hidden_layers": profile.dimensions.first_k_dense_replace + 1}
        (folder / name / "config.json").write_text(json.dumps(document))
    asked = [(name, degree) for name in PROFILES for degree in DEGREES]
    (folder / "rows.json").write_text(json.dumps([(str(folder / name), degree) for name, degree in asked]))
    done = subprocess.run(
        [
            str(ensure_engine(stack=STACKS[engine]) / "bin" / "python3"),
            str(Path(__file__).with_name(f"models_of_{engine}.py")),
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
    return Refusals(engine, dict(zip(asked, said, strict=True)))


def refined(profile: ModelProfile, degree: int) -> bool:
    """Whether vLLM alone serves it: it repeats an expert's scales for a finer block where only these do not fit, and
    the block has at least 32 (layers/fused_moe/oracle/fp8.py, refine_fp8_moe_block_shape). A shared expert is a layer
    like others, whose scales it does not repeat. Plans do not count on it."""
    against, dims = obstacles(profile, degree), profile.dimensions
    share = dims.moe_intermediate_size // degree
    return (
        bool(against)
        and not dims.n_shared_experts
        and all(words.startswith("moe_intermediate_size") for words in against)
        and math.gcd(*profile.block, share, dims.hidden_size) >= FINEST_OF_VLLM
    )


@pytest.mark.parametrize("name", PROFILES)
def test_the_engine_takes_the_degrees_that_we_allow_and_refuses_the_others(name: str, refusals: Refusals) -> None:
    taken = [degree for degree in DEGREES if not refusals.said[name, degree]]
    ours = [degree for degree in DEGREES if not obstacles(PROFILES[name], degree)]
    if refusals.engine == "vllm":
        ours = [degree for degree in DEGREES if degree in ours or refined(PROFILES[name], degree)]
    assert taken == ours, {degree: refusals.said[name, degree] for degree in DEGREES}


@pytest.mark.parametrize("name", REPORTED)
def test_what_others_have_seen_refused_is_refused_and_taken_in_blocks_of_64(name: str, refusals: Refusals) -> None:
    _, degree, share = REPORTED[name]
    assert finer_block(PROFILES[f"{name} 128x128"], degree) == 64
    assert refusals.said[f"{name} 64x64", degree] == ""
    assert f" = {share} is not divisible by weight quantization block" in refusals.said[f"{name} 128x128", degree]


@pytest.mark.parametrize("model", MODELS)
def test_the_block_that_we_advise_is_one_that_the_engine_takes_and_the_coarser_one_it_refuses(
    model: str, refusals: Refusals
) -> None:
    stock = f"{model} 128x128"
    advised = {degree: finer_block(PROFILES[stock], degree) for degree in DEGREES}
    assert any(advised.values())
    for degree, block in advised.items():
        if not block:
            continue
        assert refusals.said[f"{model} {block}x{block}", degree] == ""
        if refusals.engine == "sglang" or not refined(PROFILES[stock], degree):
            assert "is not divisible by weight quantization block" in refusals.said[stock, degree]
