"""config.json's numbers, by the names that the model families give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import SequenceMatcher
from typing import Any

from orchestrator.model.inventory import NodeSpec
from orchestrator.model.profile import Dimensions, ModelProfile
from orchestrator.planning.host import model_path
from orchestrator.protocol.errors import InputError

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


_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""CONTEXT_LENGTH_KEYS of srt/utils/hf_transformers (0.4.4: srt/hf_transformers_utils.py)."""


def context_length(config: Mapping[str, Any]) -> int | None:
    """The context length that the engine reads out of a config.json (get_context_length); None where it has none."""
    config = text if isinstance(text := config.get("text_config"), Mapping) else config
    scaling, factor = config.get("rope_scaling"), 1.0
    if isinstance(scaling, Mapping) and "original_max_position_embeddings" not in scaling:
        given = scaling.get("factor", 1)
        factor = given if isinstance(given, int | float) and scaling.get("rope_type") != "llama3" else 1.0
    longest = next((value for key in _CONTEXT_KEYS if type(value := config.get(key)) is int and value > 0), None)
    return int(factor * longest) if longest else None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _most(name: str) -> int:
    return _MOST_LAYERS if name in _LAYERS else _MOST


def _number(config: Mapping[str, Any], names: tuple[str, ...], most: int) -> int:
    return next((number for name in names if type(number := config.get(name)) is int and 0 <= number <= most), 0)


_MOST_NAMED = 4


def check_checkpoint(
    node: NodeSpec, profile: ModelProfile, config: Mapping[str, Any], others: Iterable[ModelProfile]
) -> None:
    """Raises InputError where config.json contradicts the profile; names the profile that it agrees with."""
    wrong = disagreements(profile, config)
    if not wrong:
        return
    agreeing = (other.name for other in others if not disagreements(other, config))
    fits = max(agreeing, key=lambda name: SequenceMatcher(None, profile.name, name).ratio(), default="")
    more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
    instead = f"it matches the profile {fits} (use `--model {fits}`); otherwise " if fits else ""
    raise InputError(
        f"the checkpoint does not match the profile {profile.name}: {'; '.join(wrong[:_MOST_NAMED])}{more}",
        where=f"{node.name}: {model_path(node, profile)}/config.json",
        fix=f"{instead}copy the right checkpoint there, or correct the profile",
    )


def disagreements(profile: ModelProfile, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What config.json and the profile say differently, one sentence each. What only one of them says is no
    disagreement: quantised versions of a model often leave keys out."""
    return (*_architecture(profile, config), *_quantisation(profile, config), *_dimensions(profile, config))


def _architecture(profile: ModelProfile, config: Mapping[str, Any]) -> Iterator[str]:
    named = config.get("architectures")
    if isinstance(named, list) and named and profile.architecture not in named:
        yield f"architectures is {named!r:.80}, the profile has {profile.architecture}"


def _quantisation(profile: ModelProfile, config: Mapping[str, Any]) -> Iterator[str]:
    stated = config.get("quantization_config")
    quantised = stated if isinstance(stated, Mapping) else {}
    method, block = str(quantised.get("quant_method", "")), quantised.get("weight_block_size")
    if profile.quantisation == "fp8-block":
        if method != "fp8" or not isinstance(block, list):
            method_words = f"{method!r:.40}" if method else "no quant_method"
            yield f"quantization_config has {method_words} without blocks, the profile has fp8 in blocks"
        elif block != list(profile.block):
            yield f"weight_block_size is {block!r:.40}, the profile has {list(profile.block)}"
    elif isinstance(block, list):
        yield f"weight_block_size is {block!r:.40}, the profile has {profile.quantisation}"
    elif profile.quantisation == "none" and method:
        yield f"quant_method is {method!r:.40}, the profile has no quantisation"


def _dimensions(profile: ModelProfile, config: Mapping[str, Any]) -> Iterator[str]:
    of_config = dimensions(config)
    for name in (field.name for field in fields(Dimensions)):
        theirs, ours = getattr(of_config, name), getattr(profile.dimensions, name)
        if theirs and ours and theirs != ours:
            yield f"{name} is {theirs}, the profile has {ours}"
