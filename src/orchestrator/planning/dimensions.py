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


_LAYERS = ("num_hidden_layers", "num_nextn_predict_layers")
_MOST_LAYERS = 10_000
_MOST = 1 << 31
"""More than any model has: what is beyond is an error of the file, and would cost memory by its size alone."""


def impossible(config: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Numbers of config.json that are out of any range, by name, with the greatest that may be."""
    text = _text(config)
    names = {alias: field.name for field in fields(Dimensions) for alias in _ALIASES.get(field.name, (field.name,))}
    return [
        (alias, _most(name))
        for alias, name in names.items()
        if type(text.get(alias)) is int and not 0 <= text[alias] <= _most(name)
    ]


def dimensions(config: Mapping[str, Any]) -> Dimensions:
    """The language model's dimensions; 0 where config.json does not say. Multimodal models keep them in text_config."""
    text = _text(config)
    values = {
        field.name: _number(text, _ALIASES.get(field.name, (field.name,)), _most(field.name))
        for field in fields(Dimensions)
    }
    if not values["num_key_value_heads"]:
        values["num_key_value_heads"] = values["num_attention_heads"]
    if values["n_routed_experts"] and not values["moe_intermediate_size"]:
        values["moe_intermediate_size"] = values["intermediate_size"]
    return Dimensions(**values)


def layer_kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """layer_types of config.json, a word for each layer ("full_attention", "sliding_attention", "linear_attention");
    empty where it does not say."""
    kinds = _text(config).get("layer_types")
    return tuple(str(kind) for kind in kinds[:_MOST_LAYERS]) if isinstance(kinds, list) else ()


def head_dim(config: Mapping[str, Any], size: Dimensions) -> int:
    """Size of one attention head of a model without MLA; 0 if unknown."""
    return _number(_text(config), ("head_dim",), _MOST) or size.hidden_size // max(1, size.num_attention_heads)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _most(name: str) -> int:
    return _MOST_LAYERS if name in _LAYERS else _MOST


def _number(config: Mapping[str, Any], names: tuple[str, ...], most: int) -> int:
    found = (config.get(name) for name in names)
    return next((number for number in found if type(number) is int and 0 <= number <= most), 0)
