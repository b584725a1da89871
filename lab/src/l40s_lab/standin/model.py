"""What an engine without weights needs of a model directory: sizes, shards, and whether they fit the layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .claims import GIB
from .played import Played
from .versions import Version

MARKER = ".standin"
"""A file of this name marks a directory that has an index but, on purpose, no weights."""
_REPLICATED = 1.0613
"""Memory of a rank beyond its even share of the files: 21.27 GB measured at TP32 for 688.6 GB of shards."""

_LENGTH = 8
"""Bytes of a safetensors file that give its header's length."""
_SAFETENSOR_ERROR = "safetensors_rust.SafetensorError"


@dataclass(frozen=True)
class Model:
    """path; config.json; the shard files that the index names; total bytes of the weights."""

    path: str
    config: Mapping[str, Any]
    shards: tuple[str, ...]
    weight_bytes: int

    def number(self, name: str, default: int = 0) -> int:
        value = self.config.get(name, default)
        return int(value) if value is not None else default

    @property
    def routed_experts(self) -> int:
        """0 for a dense model."""
        return routed_experts(self.config)

    @property
    def architecture(self) -> str:
        return str((self.config.get("architectures") or ["unknown"])[0])

    @property
    def context(self) -> int:
        return self.number("max_position_embeddings", 4096)

    @property
    def is_mla(self) -> bool:
        return bool(self.config.get("kv_lora_rank"))

    @property
    def quantization(self) -> str:
        """The engine's word for it in `Load weight end`."""
        method = (self.config.get("quantization_config") or {}).get("quant_method", "")
        return f"quant={method}, " if method else ""

    def weights_gib(self, ranks: int) -> float:
        return self.weight_bytes * (_REPLICATED if ranks > 1 else 1.0) / ranks / GIB

    def kv_bytes_per_token(self, tp_size: int, pp_size: int) -> int:
        """For bf16. MLA's cache is the same on every TP rank; otherwise heads are divided, to no less than one."""
        layers = max(self.number("num_hidden_layers", 1) // pp_size, 1)
        if self.is_mla:
            return (self.number("kv_lora_rank") + self.number("qk_rope_head_dim")) * 2 * layers
        heads = self.number("num_attention_heads", 1)
        head = self.number("head_dim") or self.number("hidden_size", heads) // heads
        return 2 * max(self.number("num_key_value_heads", heads) // tp_size, 1) * head * 2 * layers


def read_model(path: str, version: Version, quantization: str | None = None) -> Model:
    """Read the model directory. Raises Played with the message of the hub client or of transformers if it is invalid.

    quantization: from the command line, for a config.json without one
    """
    directory = Path(path)
    if not directory.is_dir():
        raise Played(
            "OSError",
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. "
            "Use `repo_type` argument if needed.",
        )
    if not (directory / "config.json").is_file():
        shown, words = version.config_missing
        raise Played(shown, words.format(path=path))
    config = json.loads((directory / "config.json").read_text("utf-8"))
    shards, size = _shards(directory)
    return Model(path, config, shards, size or _estimate(config, quantization))


def _shards(directory: Path) -> tuple[tuple[str, ...], int]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text("utf-8"))
        names = tuple(sorted(set(content.get("weight_map", {}).values())))
        return names, int(content.get("metadata", {}).get("total_size", 0))
    files = sorted(directory.glob("*.safetensors"))
    return tuple(file.name for file in files), sum(file.stat().st_size for file in files)


def routed_experts(config: Mapping[str, Any]) -> int:
    """By DeepSeek's, Qwen's, and MiniMax's and gpt-oss's name."""
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _estimate(config: Mapping[str, Any], quantization: str | None) -> int:
    """Bytes of the weights from config.json alone: experts, dense layers, attention as if square, embeddings."""

    def number(name: str) -> int:
        return int(config.get(name) or 0)

    hidden, layers = number("hidden_size"), number("num_hidden_layers")
    experts = routed_experts(config) + number("n_shared_experts")
    dense = min(number("first_k_dense_replace"), layers) if experts else layers
    weights = (
        (layers - dense) * experts * 3 * hidden * number("moe_intermediate_size")
        + dense * 3 * hidden * number("intermediate_size")
        + layers * 4 * hidden * hidden
        + 2 * number("vocab_size") * hidden
    )
    return weights * (1 if config.get("quantization_config") or quantization else 2)


def check_shards(model: Model, version: Version) -> None:
    """Raises Played if weight files that the index names are missing or truncated (model_loader/weight_utils.py).

    A directory with the marker file belongs to a lab: it needs no weights.
    """
    directory = Path(model.path)
    if (directory / MARKER).exists():
        return
    missing = [name for name in model.shards if not (directory / name).is_file()]
    if len(missing) == len(model.shards):
        raise Played("RuntimeError", f"Cannot find any model weights with `{model.path}`")
    if missing and version.missing_shards_fail:
        raise Played(
            "RuntimeError",
            f"model.safetensors.index.json references {len(missing)} shard file(s) missing from {model.path} "
            f"(incomplete download?): {missing}",
        )
    for name in model.shards:
        if name not in missing:
            _check_shard(directory / name)


def _check_shard(path: Path) -> None:
    """Raises Played(SafetensorError) for a file that ends before its header or its tensors do."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < _LENGTH + length:
            raise Played(_SAFETENSOR_ERROR, "Error while deserializing header: invalid header length")
        header: dict[str, Any] = json.loads(file.read(length))
    ends = (tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    if size < _LENGTH + length + max(ends, default=0):
        raise Played(_SAFETENSOR_ERROR, "Error while deserializing header: incomplete metadata, file not fully covered")


def check_layout(model: Model, tp_size: int, ep_size: int) -> None:
    """Raises Played(ValueError) if a TP share of an FP8 matrix is not a multiple of its block (quantization/fp8.py)."""
    heads = model.number("num_attention_heads")
    if heads % tp_size:
        raise Played("AssertionError", f"{heads} is not divisible by {tp_size}")
    block = (model.config.get("quantization_config") or {}).get("weight_block_size")
    if not block or tp_size == 1:
        return
    block_n, block_k = (int(size) for size in block)
    experts = model.routed_experts
    dense_layers = model.number("first_k_dense_replace") if experts else model.number("num_hidden_layers")
    if dense_layers:
        share = model.number("intermediate_size") // tp_size
        if share % block_n:
            raise Played(
                "ValueError",
                f"Weight output_partition_size = {share} is not divisible by weight quantization block_n = {block_n}.",
            )
        if share % block_k:
            raise Played(
                "ValueError",
                f"Weight input_size_per_partition = {share} is not divisible by "
                f"weight quantization block_k = {block_k}.",
            )
    if experts:
        share = model.number("moe_intermediate_size") // max(tp_size // ep_size, 1)
        if share % block_n:
            raise Played(
                "ValueError",
                f"The output_size of gate's and up's weight = {share} is not divisible by "
                f"weight quantization block_n = {block_n}.",
            )
