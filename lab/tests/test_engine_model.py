"""The tiny model: complete, readable by the official library, the same every time, divisible by 8 ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT, LETTERS, QWEN, byte_vocabulary, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "made" / "here")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_official_library_reads_every_tensor_that_the_index_names(model: Path) -> None:
    index = read(model / "model.safetensors.index.json")
    with safe_open(model / "model.safetensors", framework="np") as weights:
        assert set(weights.keys()) == set(index["weight_map"])
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        bias = weights.get_tensor("model.layers.1.mlp.gate.e_score_correction_bias")
    assert bias.tolist() == [0.0] * 8
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == [264, 128]
    assert shapes["model.layers.0.self_attn.kv_b_proj.weight"] == [8 * (32 + 32), 64]
    assert "model.layers.1.mlp.experts.7.down_proj.weight" in shapes
    assert not list(model.glob(".*.new"))


def test_the_one_for_vllm_has_key_value_heads_and_experts_alone(tmp_path: Path) -> None:
    made = tiny_model(tmp_path / QWEN.name, QWEN)
    config, names = read(made / "config.json"), read(made / "model.safetensors.index.json")["weight_map"]
    with safe_open(made / "model.safetensors", framework="np") as weights:
        shape = weights.get_slice("model.layers.0.self_attn.k_proj.weight").get_shape()
    assert shape == [config["num_key_value_heads"] * config["head_dim"], 128]
    assert config["architectures"] == ["Qwen3MoeForCausalLM"] and config["num_experts"] == 8
    assert not [name for name in names if "shared" in name or "kv_a" in name or "bias" in name]
    assert "model.layers.0.mlp.experts.7.down_proj.weight" in names


def test_the_same_seed_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again, other = tiny_model(tmp_path / "again"), tiny_model(tmp_path / "other", seed=1)
    for file in sorted(path.name for path in model.iterdir()):
        assert (again / file).read_bytes() == (model / file).read_bytes(), file
    assert (other / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()


def test_a_letter_s_output_row_is_the_embedding_of_the_letter_before_it(model: Path) -> None:
    contents = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(contents[:8], "little")
    header = json.loads(contents[8 : 8 + length])

    def row(tensor: str, number: int) -> bytes:
        start = 8 + length + header[tensor]["data_offsets"][0] + number * 128 * 2
        return contents[start : start + 128 * 2]

    vocabulary = byte_vocabulary()
    for letter, following in zip(LETTERS, LETTERS[1:] + LETTERS[0], strict=True):
        assert row("lm_head.weight", vocabulary[following]) == row("model.embed_tokens.weight", vocabulary[letter])
    assert row("lm_head.weight", vocabulary["A"]) == bytes(256)
    assert LETTERS.index(CANARY_TEXT) == LETTERS.index(CANARY_PROMPT) + len(CANARY_PROMPT)


def test_every_byte_has_a_token_and_the_config_agrees_with_the_tokenizer(model: Path) -> None:
    config, tokenizer = read(model / "config.json"), read(model / "tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    assert len(vocabulary) == config["vocab_size"] == 264
    assert sorted(vocabulary.values()) == list(range(264))
    assert {token["content"]: token["id"] for token in tokenizer["added_tokens"]} == {
        "<s>": config["bos_token_id"],
        "</s>": config["eos_token_id"],
    }
    assert {"a", "Ġ", "Ċ", "ÿ"} <= set(vocabulary), "GPT-2's spelling of a, space, newline and 0xff"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_widths_can_be_shared_by(model: Path, ranks: int) -> None:
    config = read(model / "config.json")
    for width in ("num_attention_heads", "intermediate_size", "moe_intermediate_size", "vocab_size"):
        assert config[width] % ranks == 0, width
