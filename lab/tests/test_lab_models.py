from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from l40s_lab.engine.model import QWEN, TINY, WIDE
from l40s_lab.node import models
from l40s_lab.standin import hub
from orchestrator.checkpoint.on_node import hub_client, reblock
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


def test_the_hubs_checkpoint_is_listed_brought_and_fit_for_re_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(hub, "HUB", tmp_path / "hub")
    repo = hub.HUB / "deepseek-ai" / "DeepSeek-V3-0324"
    repo.mkdir(parents=True)
    files = models.checkpoint(load_profile(repo.name))
    for name, content in files.items():
        (repo / name).write_bytes(content)
    told: list[dict[str, Any]] = []
    asked = {"hub": "huggingface", "repo": "deepseek-ai/DeepSeek-V3-0324", "revision": "", "endpoint": "", "token": ""}
    brought = tmp_path / "brought"
    hub_client._huggingface({**asked, "directory": str(brought), "exclude": [], "dry_run": False}, told.append)
    assert {one["path"]: one["size"] for one in told[0]["files"]} == {name: len(files[name]) for name in files}
    assert {path.name: path.read_bytes() for path in brought.iterdir()} == files
    job = reblock.plan(brought, 64)
    assert json.loads(job.config)["hidden_size"] == 7168 and len(job.weights) == 2
    with pytest.raises(hub.RepositoryNotFoundError, match="has only deepseek-ai/DeepSeek-V3-0324, not other/model"):
        hub.HfApi().model_info("other/model")
