from __future__ import annotations

import json

from l40s_lab.engine.model import QWEN, TINY, WIDE
from l40s_lab.node import models
from orchestrator.loading.profiles import load_profile, profile_names


def test_every_profile_that_the_stand_in_serves_has_a_directory() -> None:
    tree = models.render("/workspace")
    for name in set(profile_names()) - {TINY.name, WIDE.name, QWEN.name}:
        assert f"/workspace/{load_profile(name).directory}/config.json" in tree.files


def test_the_re_blocked_checkpoint_has_deepseeks_dimensions_and_163_shards() -> None:
    tree = models.render("/workspace")
    folder = "/workspace/DeepSeek-V3-0324-Block64x64"
    config = json.loads(tree.files[f"{folder}/config.json"])
    assert config["quantization_config"]["weight_block_size"] == [64, 64]
    assert (config["hidden_size"], config["num_hidden_layers"], config["n_routed_experts"]) == (7168, 61, 256)
    index = json.loads(tree.files[f"{folder}/model.safetensors.index.json"])
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) == 163
    assert (shards[0], shards[-1]) == ("model-00001-of-000163.safetensors", "model-00163-of-000163.safetensors")
