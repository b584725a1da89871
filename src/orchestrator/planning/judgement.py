"""What a checkpoint's own facts mean: dimensions, layouts and findings (`checkpoint check`), and a profile with what
they leave unknown (`models add`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.model.finding import Finding
from orchestrator.model.profile import Attention, Dimensions, ModelProfile, Part, Quantisation
from orchestrator.planning.dimensions import dimensions, impossible, layer_kinds
from orchestrator.planning.layout import degrees
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import Canary


@dataclass(frozen=True, slots=True)
class Judgement:
    """facts: as orchestrator.checkpoint.on_node.directory.look gives them; findings: stop first."""

    facts: Mapping[str, Any]
    dimensions: Dimensions
    degrees: Mapping[int, str]
    findings: tuple[Finding, ...]

    @property
    def loads(self) -> bool:
        """Whether nothing was found that an engine refuses or loads wrongly."""
        return all(finding.severity is not Severity.STOP for finding in self.findings)

    @property
    def architecture(self) -> str:
        names = self.facts["config"].get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    @property
    def method(self) -> str:
        """quant_method as config.json has it, 'none' where it has none."""
        stated = self.facts["config"].get("quantization_config")
        return str(stated.get("quant_method", "none")) if isinstance(stated, dict) else "none"

    def as_json(self) -> dict[str, Any]:
        """The document of `checkpoint check --json`."""
        facts = self.facts
        return {
            "path": facts["path"],
            "loads": self.loads,
            "architecture": self.architecture,
            "dimensions": asdict(self.dimensions),
            "quantisation": {"method": self.method, "block": facts["block"]},
            "bytes": facts["bytes"],
            "shards": facts["shards"],
            "tensors": facts["tensors"],
            "layers": len(facts["layers"]),
            "tensor_parallel": [
                {"degree": degree, "allowed": not refusal, "why_not": refusal}
                for degree, refusal in self.degrees.items()
            ],
            "findings": [finding.as_json() for finding in self.findings],
        }


def judge(facts: Mapping[str, Any]) -> Judgement:
    """What the facts mean; pure."""
    size = dimensions(facts["config"])
    block = (facts["block"][0], facts["block"][1]) if facts["block"] else None
    allowed = degrees(size, block) if size.num_attention_heads else {}
    findings = [*_faults(facts), *_impossible(facts), *_quantisation(facts)]
    findings += [*_missing_layers(facts, size), *_missing_experts(facts, size)]
    findings.sort(key=lambda finding: finding.severity is not Severity.STOP)
    return Judgement(facts, size, allowed, tuple(findings))


def _faults(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for fault in facts["faults"]:
        yield Finding(
            id=fault["id"],
            severity=Severity(fault["severity"]),
            node="",
            title=f"{fault['where']}: {fault['what']}",
            fix=fault["fix"],
        )


def _stop(name: str, title: str, *, effect: str = "", fix: str = "") -> Finding:
    return Finding(id=name, severity=Severity.STOP, node="", title=title, effect=effect, fix=fix)


def _impossible(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for name, most in impossible(facts["config"]):
        yield _stop("CONFIG-BROKEN", f"config.json: {name} is not a number from 0 to {most}", fix="download it again")


def _quantisation(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """sglang 0.5.23 srt/layers/quantization/fp8.py, Fp8Config.__init__."""
    stated = facts["config"].get("quantization_config")
    if not isinstance(stated, dict) or "fp8" not in str(stated.get("quant_method", "")):
        return
    block, scheme = stated.get("weight_block_size"), stated.get("activation_scheme", "dynamic")
    if block is not None and facts["block"] is None:
        yield _stop("BLOCK-BROKEN", f"config.json: weight_block_size is {block!r}, wanted two positive numbers")
    if facts["block"] and scheme != "dynamic":
        yield _stop(
            "ACTIVATION-SCHEME",
            f"config.json: activation_scheme is {scheme!r}; block-wise FP8 is served with 'dynamic' only",
        )


_UNINITIALISED = "the engine starts with uninitialised memory for "


def _missing_layers(facts: Mapping[str, Any], size: Dimensions) -> Iterator[Finding]:
    present, layers = {int(layer) for layer in facts["layers"]}, size.num_hidden_layers
    if not present or not layers:
        return  # `dimensions` has bounded how many are wanted
    if absent := [layer for layer in range(layers) if layer not in present]:
        title = f"{len(absent)} of {layers} layers have no tensor; the first is layer {absent[0]}"
        yield _stop("LAYER-MISSING", title, effect=f"{_UNINITIALISED}them")
    mtp = range(layers, layers + size.num_nextn_predict_layers)
    if absent := [layer for layer in mtp if layer not in present]:
        title = f"config.json has {len(mtp)} multi-token-prediction layers, but layer {absent[0]} has no tensor"
        effect = "the model serves, but can't use these layers for speculative decoding"
        yield Finding(id="MTP-MISSING", severity=Severity.NOTE, node="", title=title, effect=effect)


def _missing_experts(facts: Mapping[str, Any], size: Dimensions) -> Iterator[Finding]:
    for layer, count in facts["experts"].items():
        if count < size.n_routed_experts:
            yield _stop(
                "EXPERT-MISSING",
                f"layer {layer} has {count} of {size.n_routed_experts} experts",
                effect=f"{_UNINITIALISED}the others",
            )


_NEEDED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "vocab_size",
)  # fmt: skip
_GRAPHS = 32
"""The batch sizes of the articles on 32 L40S."""
_PROMPT = "The capital of France is"
_OWN_WINDOW_POOL = frozenset(
    {
        "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "GptOssForCausalLM", "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM", "IQuestQ1ForCausalLM", "LagunaForCausalLM", "MellumForCausalLM", "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)  # fmt: skip
"""Architectures whose sliding-window layers have a KV pool of their own, by layer_types (srt/configs/model_config.py of
SGLang 0.5.23: is_hybrid_swa_model, get_hybrid_layer_ids). Others keep all layers in one pool."""


def draft(judgement: Judgement, *, name: str, directory: str, source: str) -> tuple[ModelProfile, dict[str, str]]:
    """A profile, and what is unknown of it by key of its file, which says so at that line.

    Raises InputError where config.json lacks a dimension, or names a quantisation whose memory use is not known.
    """
    where = f"{judgement.facts['path']}/config.json"
    for key, most in impossible(judgement.facts["config"]):
        raise InputError(f"{key} is not a number from 0 to {most}", where=where, fix="download config.json again")
    unnamed = [] if judgement.architecture else ["architectures"]
    if lacking := [*unnamed, *(key for key in _NEEDED if not getattr(judgement.dimensions, key))]:
        raise InputError(
            f"it does not contain {', '.join(lacking)}", where=where, fix="complete it from the model's own page"
        )
    quantisation, guess = _stored_as(judgement, where)
    group = _group(judgement, quantisation, where)
    unknown = dict(_unknown(judgement))
    if guess:
        unknown["quantisation"] = guess
    height, width = judgement.facts["block"] or (0, 0)
    profile = ModelProfile(
        name=name,
        source=source,
        directory=directory,
        architecture=judgement.architecture,
        quantisation=quantisation,
        block=(int(height), int(width)) if quantisation == "fp8-block" else (0, 0),
        group=group,
        parts=_parts(judgement) if group else (),
        attention=_attention(judgement),
        window_layers=_window_layers(judgement),
        dimensions=judgement.dimensions,
        bytes=_bytes(judgement.facts),
        shards=int(judgement.facts["shards"]["named"]),
        trust_remote_code=bool(judgement.facts["config"].get("auto_map")),
        cuda_graph_max_bs=_GRAPHS,
        torch_compile_max_bs=None,
        canary=Canary(prompt=_PROMPT),
    )
    return profile, unknown


def _attention(judgement: Judgement) -> Attention:
    if set(layer_kinds(judgement.facts["config"])) - {"full_attention"}:
        return "hybrid"
    return "mla" if judgement.dimensions.kv_lora_rank else "gqa"


def _window_layers(judgement: Judgement) -> int:
    if judgement.architecture not in _OWN_WINDOW_POOL:
        return 0
    layers = layer_kinds(judgement.facts["config"])[: judgement.dimensions.num_hidden_layers]
    return layers.count("sliding_attention")


_NO_BLOCK = "config.json has no block size; assuming one scale per channel"
_STORED: Mapping[tuple[str, str], tuple[Quantisation, str]] = {
    ("mxfp4", ""): ("mxfp4", ""),
    ("fp8", ""): ("fp8-channel", _NO_BLOCK),
    ("compressed-tensors", "F8_E4M3"): ("fp8-channel", _NO_BLOCK),
    ("w8a8_int8", ""): ("int8-channel", ""),
    ("compressed-tensors", "I8"): ("int8-channel", "the tensors are int8: one scale a channel is assumed"),
    ("none", "I8"): ("int8-channel", "not in config.json, and the tensors are int8; assuming one scale per channel"),
}
"""quant_method and a type of tensor beside it, '' for any -> how the weights are stored, and what that assumes. The
first that applies counts."""


def _stored_as(judgement: Judgement, where: str) -> tuple[Quantisation, str]:
    """How the weights are stored, and what is assumed where config.json does not say so; '' where it does."""
    method, types = judgement.method, judgement.facts["tensors"]["by_dtype"]
    if method != "mxfp4" and _weights(judgement).get("num_bits") == 4:
        return "int4-group", ""
    if method == "fp8" and judgement.facts["block"]:
        return "fp8-block", ""
    for (its_method, its_type), stored in _STORED.items():
        if its_method == method and its_type in ("", *types):
            return stored
    if method == "none" and "F8_E4M3" not in types:
        return "none", ""
    raise InputError(
        f"quant_method is {method!r:.60} and the tensors are {', '.join(sorted(types)) or 'not there'}: the GPU"
        " memory for such weights is not known",
        where=where,
        fix="write the profile yourself (inventory/models/*.yml are examples), or use an FP8, INT8 or BF16 version",
    )


def _weights(judgement: Judgement) -> Mapping[str, Any]:
    """What compressed-tensors says about the weights of its first group; empty where it says nothing."""
    groups = _quantised(judgement).get("config_groups")
    group: object = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = group.get("weights") if isinstance(group, Mapping) else {}
    return weights if isinstance(weights, Mapping) else {}


def _quantised(judgement: Judgement) -> Mapping[str, Any]:
    config = judgement.facts["config"]
    text = config.get("text_config")
    nested = text.get("quantization_config") if isinstance(text, Mapping) else None
    stated = config.get("quantization_config") or nested
    return stated if isinstance(stated, Mapping) else {}


def _group(judgement: Judgement, quantisation: Quantisation, where: str) -> int:
    """How many weights share one scale; 0 where they are not stored in groups."""
    if quantisation == "mxfp4":
        return 32
    if quantisation != "int4-group":
        return 0
    size = _weights(judgement).get("group_size")
    if type(size) is not int or not 0 < size <= 65536:
        raise InputError(
            f"quantization_config has 4 bits and group_size {size!r:.40}, wanted a positive integer",
            where=where,
            fix="complete it from the model's own page, or write the profile by hand",
        )
    return size


_LEFT_OUT: Mapping[Part, tuple[str, ...]] = {
    "attention": ("self_attn",),
    "shared": ("shared_expert",),
    "dense": ("mlp.gate_proj", "mlp.gate_up_proj", "mlp.(gate", "mlp\\.(gate"),
}
"""How published checkpoints name a part in their lists of modules that are not quantised."""


def _parts(judgement: Judgement) -> tuple[tuple[Part, Quantisation], ...]:
    stated = _quantised(judgement)
    lists = (stated.get("ignore"), stated.get("modules_to_not_convert"))
    words = [str(word) for names in lists if isinstance(names, list) for word in names]
    return tuple(
        (part, "none") for part, marks in _LEFT_OUT.items() if any(mark in word for word in words for mark in marks)
    )


def _bytes(facts: Mapping[str, Any]) -> int:
    return int(facts["bytes"]["files"]) if facts["shards"]["readable"] == facts["shards"]["named"] else 0


def _unknown(judgement: Judgement) -> Iterator[tuple[str, str]]:
    facts, size = judgement.facts, judgement.dimensions
    unchecked = "whether the stack's engine supports this architecture (`l40s-deploy plan` does not check it either)"
    yield "architecture", f"not checked: {unchecked}"
    yield (
        "cuda_graph_max_bs",
        "the articles' value for DeepSeek on 32 L40S; larger graphs take more start time and memory",
    )
    yield "flags", "engine flags that this checkpoint needs: see the model's page"
    yield "expect_any", "words that the answer must contain; without any, every text is accepted"
    if not _bytes(facts):
        yield "bytes", "some weight files are missing"
    if size.n_routed_experts and not size.first_k_dense_replace:
        yield "first_k_dense_replace", "not in config.json; assuming that every layer has experts"
    if not size.kv_lora_rank and not size.head_dim:
        yield "head_dim", "not in config.json; assuming hidden_size / num_attention_heads"


def known_dimensions(size: Dimensions) -> dict[str, int]:
    """The dimensions worth writing down: those that every profile needs, and those that are not 0."""
    return {key: getattr(size, key) for key in Dimensions.__dataclass_fields__ if getattr(size, key) or key in _NEEDED}
