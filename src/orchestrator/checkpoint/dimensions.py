"""config.json's numbers, by the names that the model families give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.model.profile import Dimensions

_ALIASES = {
    "n_routed_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_modules"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts"),
}


def dimensions(config: Mapping[str, Any]) -> Dimensions:
    """The language model's dimensions; 0 where config.json does not say. Multimodal models keep them in text_config."""
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    values = {field.name: _number(text, _ALIASES.get(field.name, (field.name,))) for field in fields(Dimensions)}
    if not values["num_key_value_heads"]:
        values["num_key_value_heads"] = values["num_attention_heads"]
    if values["n_routed_experts"] and not values["moe_intermediate_size"]:
        values["moe_intermediate_size"] = values["intermediate_size"]
    return Dimensions(**values)


def head_dim(config: Mapping[str, Any], size: Dimensions) -> int:
    """Size of one attention head of a model without MLA; 0 where it can't be told."""
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    return _number(text, ("head_dim",)) or size.hidden_size // max(1, size.num_attention_heads)


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((config[name] for name in names if type(config.get(name)) is int), 0)
