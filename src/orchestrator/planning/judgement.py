"""From a checkpoint's facts to the output of `checkpoint inspect`: dimensions, layouts, and findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.profile import Dimensions
from orchestrator.planning.dimensions import dimensions, head_dim, impossible
from orchestrator.planning.parallel import Degree, degrees


@dataclass(frozen=True, slots=True)
class Judgement:
    """facts: as orchestrator.checkpoint.on_node.directory.look gives them; findings: stop first."""

    facts: Mapping[str, Any]
    dimensions: Dimensions
    degrees: tuple[Degree, ...]
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
        found = self.facts["config"].get("quantization_config")
        return str(found.get("quant_method", "none")) if isinstance(found, dict) else "none"

    def as_json(self) -> dict[str, Any]:
        """The document of `checkpoint inspect --json`."""
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
                {"degree": degree.tensor_parallel, "allowed": not degree.refusal, "why_not": degree.refusal}
                for degree in self.degrees
            ],
            "findings": [finding.as_json() for finding in self.findings],
        }


def judge(facts: Mapping[str, Any]) -> Judgement:
    """What the facts mean; pure."""
    size = dimensions(facts["config"])
    block = (facts["block"][0], facts["block"][1]) if facts["block"] else None
    known = size.num_attention_heads > 0
    allowed = degrees(size, block, head_dim=head_dim(facts["config"], size)) if known else ()
    found = [*_faults(facts), *_impossible(facts), *_quantisation(facts)]
    found += [*_missing_layers(facts, size), *_missing_experts(facts, size)]
    found.sort(key=lambda finding: finding.severity is not Severity.STOP)
    return Judgement(facts, size, allowed, tuple(found))


def _faults(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for fault in facts["faults"]:
        yield Finding(
            id=fault["id"],
            severity=Severity(fault["severity"]),
            node="",
            title=f"{fault['where']}: {fault['what']}",
            fix=fault["fix"],
        )


def _impossible(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for name, most in impossible(facts["config"]):
        title = f"config.json: {name} is not a number from 0 to {most}"
        yield Finding(id="CONFIG-BROKEN", severity=Severity.STOP, node="", title=title, fix="download it again")


def _quantisation(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """sglang 0.5.23 srt/layers/quantization/fp8.py, Fp8Config.__init__."""
    found = facts["config"].get("quantization_config")
    if not isinstance(found, dict) or "fp8" not in str(found.get("quant_method", "")):
        return
    block = found.get("weight_block_size")
    if block is not None and facts["block"] is None:
        title = f"config.json: weight_block_size is {block!r}, wanted two positive numbers"
        yield Finding(id="BLOCK-BROKEN", severity=Severity.STOP, node="", title=title)
    scheme = found.get("activation_scheme", "dynamic")
    if facts["block"] and scheme != "dynamic":
        title = f"config.json: activation_scheme is {scheme!r}; block-wise FP8 is served with 'dynamic' only"
        yield Finding(id="ACTIVATION-SCHEME", severity=Severity.STOP, node="", title=title)


def _missing_layers(facts: Mapping[str, Any], size: Dimensions) -> Iterator[Finding]:
    present = {int(layer) for layer in facts["layers"]}
    if not present or not size.num_hidden_layers:
        return
    if absent := _absent(present, range(size.num_hidden_layers)):
        title = f"{len(absent)} of {size.num_hidden_layers} layers have no tensor; the first is layer {absent[0]}"
        effect = "the engine starts with uninitialised memory for them"
        yield Finding(id="LAYER-MISSING", severity=Severity.STOP, node="", title=title, effect=effect)
    mtp = range(size.num_hidden_layers, size.num_hidden_layers + size.num_nextn_predict_layers)
    if absent := _absent(present, mtp):
        title = f"config.json has {len(mtp)} multi-token-prediction layers, but layer {absent[0]} has no tensor"
        effect = "the model serves, but can't use these layers for speculative decoding"
        yield Finding(id="MTP-MISSING", severity=Severity.NOTE, node="", title=title, effect=effect)


def _absent(present: set[int], wanted: range) -> list[int]:
    """`dimensions` has bounded how many are wanted."""
    return [layer for layer in wanted if layer not in present]


def _missing_experts(facts: Mapping[str, Any], size: Dimensions) -> Iterator[Finding]:
    for layer, count in facts["experts"].items():
        if size.n_routed_experts and count < size.n_routed_experts:
            title = f"layer {layer} has {count} of {size.n_routed_experts} experts"
            effect = "the engine starts with uninitialised memory for the others"
            yield Finding(id="EXPERT-MISSING", severity=Severity.STOP, node="", title=title, effect=effect)
