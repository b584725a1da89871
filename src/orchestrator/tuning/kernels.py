"""Which kernels a plan will run, at which shapes, and what a check of them found. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import count, product
from math import gcd
from typing import Any

from orchestrator.engines.engine import Lookup
from orchestrator.engines.tuned_validity import read_name, unusable
from orchestrator.engines.tuned_wanted import Wanted, linears, wanted_files
from orchestrator.model.profile import ModelProfile
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import CausePattern
from orchestrator.tuning.messages import KernelCase, KernelLine, KernelShape, Tile, TuneJob

CHECKED = (1, 32, 1024)
"""Tokens: one request, the largest batch that most plans capture, a prompt."""
PROMPT = 384
_SEE_ALL = "`stack check --model` shows all of them"
_OWN = KernelCase(
    id=0, name="Triton's own GEMM", kernel="triton", dtype="fp8_w8a8", batch=256, n=512, k=1024, block=(64, 64)
)


class KernelVerdict(Enum):
    """The gravest first. FAILS: it does not launch; NOT_RUN: unknown, which is never fine."""

    FAILS = "fails"
    WRONG = "wrong"
    NOT_RUN = "not-run"
    RIGHT = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResult:
    """One kernel on one node.

    error: distance of its product from the one in float32, of its norm, None where none was compared
    us:    microseconds of one run, None where not timed
    text:  what it said, or why it was not run; cause: what the engine's log would have been explained with
    shared: bytes of shared memory that its tiles need on the plan's GPU, 0 where not compiled for it
    """

    case: KernelCase
    verdict: KernelVerdict
    error: float | None = None
    us: float | None = None
    text: str = ""
    cause: CausePattern | None = None
    shared: int = 0

    @property
    def reason(self) -> str:
        """Why it fails or was not run, in words; '' for one that ran."""
        if self.verdict not in (KernelVerdict.FAILS, KernelVerdict.NOT_RUN):
            return ""
        return f"{self.text} ({self.cause.id}: {self.cause.text}; {self.cause.fix})" if self.cause else self.text

    def as_json(self) -> dict[str, Any]:
        """A member of `kernels[]`."""
        return {
            "name": self.case.name,
            "shape": shape_words(self.case),
            "dtype": dtype_words(self.case),
            "verdict": self.verdict.value,
            "error": self.error,
            "us": self.us,
            "cause": {name: getattr(self.cause, name) for name in ("id", "text", "fix")} if self.cause else None,
            "text": self.text,
            "shared_bytes": self.shared or None,
        }


def kernels_of(profile: ModelProfile, layout: Layout, lookup: Lookup, *, gpu: str) -> tuple[KernelCase, ...]:
    """Everything that one GPU runs in one layer of each kind; what this check can't run is among them."""
    wanted = wanted_files(profile, layout, lookup, gpu=gpu, triton="")
    jobs = reversed(jobs_of(profile, wanted, CHECKED))
    shapes = [{field.name: getattr(job, field.name) for field in fields(KernelShape)} for job in jobs]
    names = {"moe": "fused MoE", "linear": "FP8 block GEMM"}
    tiled = [KernelCase(id=0, name=names[shape["kernel"]], **shape) for shape in shapes]
    experts = [case for case in tiled if case.kernel == "moe"]
    cases = [_OWN, *_attention(profile, layout), *(case for case in tiled if case.kernel == "linear")]
    cases += _linears(profile, layout, lookup)
    cases += [*experts, *(replace(case, name="fused MoE, built-in tiles", built_in=True) for case in experts)]
    if profile.dimensions.n_routed_experts and not experts:
        cases.append(_unknown(f"fused MoE ({profile.stored('experts')})"))
    return tuple(replace(case, id=place) for place, case in enumerate(cases))


def _unknown(name: str) -> KernelCase:
    return KernelCase(id=0, name=name, kernel="unknown")


def _attention(profile: ModelProfile, layout: Layout) -> list[KernelCase]:
    """MLA takes Triton's on these GPUs; other models FlashInfer's, unless their profile asks for Triton's."""
    dims, ways = profile.dimensions, layout.tensor_parallel // layout.attention_data_parallel
    extend = KernelCase(
        id=0,
        name="extend attention",
        kernel="extend",
        batch=PROMPT,
        heads=dims.num_attention_heads // ways,
        cached=True,
    )
    absorb = []
    if profile.attention == "mla":
        nope, latent, v = dims.qk_nope_head_dim, dims.kv_lora_rank, dims.v_head_dim
        first = replace(extend, kv_heads=extend.heads, qk=nope + dims.qk_rope_head_dim, v=v, cached=False)
        extend = replace(extend, kv_heads=1, qk=latent + dims.qk_rope_head_dim, v=latent)
        dtype = "fp8_w8a8" if profile.stored("attention") == "fp8-block" else ""
        absorb = [
            KernelCase(
                id=0, name="MLA absorb", kernel="absorb", dtype=dtype, batch=CHECKED[1], heads=extend.heads, n=n, k=k
            )
            for n, k in ((latent, nope), (v, latent))
        ]
        absorb.insert(0, first)
    elif profile.attention == "gqa" and any(words[1:] == ("--attention-backend", "triton") for words in profile.flags):
        size = profile.dimensions.head
        extend = replace(extend, kv_heads=max(1, dims.num_key_value_heads // ways), qk=size, v=size)
    else:
        return [_unknown(f"attention ({profile.attention})")]
    return [extend, replace(extend, name="decode attention", kernel="decode", batch=2), *absorb]


def _linears(profile: ModelProfile, layout: Layout, lookup: Lookup) -> list[KernelCase]:
    """Those that are not Triton's."""
    dtype = {"int8-channel": "int8_w8a8", "fp8-channel": "fp8_w8a8"}.get(profile.quantisation)
    if dtype is None:
        known = profile.quantisation in ("none", "fp8-block")
        return [] if known else [_unknown(f"GEMM ({profile.quantisation})")]
    case = KernelCase(id=0, name=f"{dtype.partition('_')[0].upper()} scaled GEMM", kernel="channel", dtype=dtype)
    shapes = linears(profile, layout, lookup)
    return [replace(case, batch=batch, n=matrix.rows, k=matrix.columns) for batch in CHECKED for matrix in shapes]


def shape_words(case: KernelCase) -> str:
    """`M=32 N=768 K=1536`."""
    sizes = {
        "E": case.e,
        "N": case.n,
        "K": case.k,
        "top": case.top_k,
        "heads": case.heads,
        "KV heads": case.kv_heads,
        "qk": case.qk,
        "v": case.v,
    }
    words = " ".join(f"{name}={size}" for name, size in {"M": case.batch, **sizes}.items() if size)
    return f"{words} cached" if case.cached else words


def dtype_words(case: KernelCase) -> str:
    """`fp8 64x64`, `int8`, `bf16`."""
    return (case.dtype.partition("_")[0] or "bf16") + (f" {case.block[0]}x{case.block[1]}" if all(case.block) else "")


def judged(
    cases: Sequence[KernelCase], lines: Iterable[KernelLine], causes: Sequence[CausePattern], *, limit: int = 0
) -> tuple[KernelResult, ...]:
    """What a node's lines say of each kernel. limit: bytes of shared memory that a block may have

    A kernel that it says nothing of was not run.
    """
    lines_of: dict[int, list[KernelLine]] = {case.id: [] for case in cases}
    for line in lines:
        if line.kernel in lines_of:
            lines_of[line.kernel].append(line)
    return tuple(_judged(case, lines_of[case.id], causes, limit) for case in cases)


def _cause_in(text: str, causes: Sequence[CausePattern]) -> CausePattern | None:
    return next((cause for cause in causes if not cause.secondary and _explains(cause, text)), None)


def _judged(case: KernelCase, lines: Sequence[KernelLine], causes: Sequence[CausePattern], limit: int) -> KernelResult:
    merged = (KernelVerdict.FAILS, KernelVerdict.WRONG, KernelVerdict.RIGHT)
    by_verdict = {line.verdict: line for line in lines}
    verdict = next((candidate for candidate in merged if candidate.value in by_verdict), KernelVerdict.NOT_RUN)
    compared = by_verdict.get("wrong", by_verdict.get("right", KernelLine(error=-1.0)))
    shared = max((line.shared for line in lines), default=0)
    texts = [line.text for line in sorted(lines, key=lambda line: line.verdict != verdict.value)]
    if shared and verdict is not KernelVerdict.FAILS:
        texts.append(f"compiled for the plan's GPU: {shared} of {limit} bytes of shared memory")
    text = "; ".join(filter(None, texts)) if lines else "the node said nothing of it"
    return KernelResult(
        case=case,
        verdict=verdict,
        error=compared.error if compared.error >= 0 else None,
        us=compared.us or None,
        text=text,
        cause=_cause_in(text, causes) if verdict is KernelVerdict.FAILS else None,
        shared=shared,
    )


def _explains(cause: CausePattern, text: str) -> bool:
    """Of a cause that asks for a line before it, that line counts too."""
    if cause.after and not re.search(cause.after, text):
        return False
    return re.search(cause.pattern, text) is not None


def gravest(results: Iterable[KernelResult]) -> KernelVerdict:
    """Of all; not run where there is nothing."""
    return gravest_of(result.verdict for result in results)


def gravest_of(verdicts: Iterable[KernelVerdict]) -> KernelVerdict:
    """The first of these in the order of KernelVerdict; not run for none."""
    return min(verdicts, key=list(KernelVerdict).index, default=KernelVerdict.NOT_RUN)


def wrong_words(by_node: Mapping[str, Sequence[KernelResult]]) -> tuple[str, str]:
    """The first kernel that fails or is wrong, in words, and the fix; ('', '') where none is."""
    bad = (KernelVerdict.FAILS, KernelVerdict.WRONG)
    wrong = [(node, result) for node, results in by_node.items() for result in results if result.verdict in bad]
    for node, worst in wrong[:1]:
        why = worst.reason or f"error {worst.error}"
        words = f"{worst.case.name} ({shape_words(worst.case)}, {dtype_words(worst.case)}) {worst.verdict.value}"
        return (
            f"{node}: {words}: {why}",
            worst.cause.fix if worst.cause else _SEE_ALL,
        )
    return "", ""


BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""The batch sizes that SGLang's own tuners measure (benchmark/kernels/fused_moe_triton)."""
_SPACE: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (32, 64, 128, 256),
    "BLOCK_SIZE_K": (32, 64, 128, 256),
    "GROUP_SIZE_M": (1, 16, 32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
"""SGLang's own, and BLOCK_SIZE_K 32."""
_GOLDEN = (5**0.5 - 1) / 2
"""Repeated steps of this share of a range spread over all of it, however few they are. With a step that divides the
range, they would all have the same depth and number of stages."""


def candidates(name: str, most: int | None = None) -> tuple[Tile, ...]:
    """All tiles of the space that an engine can use in the config file of this name. most: only so many of them,
    spread over every dimension of the space.

    Raises ValueError for a name that no engine looks for.
    """
    if (kernel := read_name(name)) is None:
        raise ValueError(f"no engine uses a file called {name}")
    space = (dict(zip(_SPACE, values, strict=True)) for values in product(*_SPACE.values()))
    tiles = [tile for tile in space if not any(unusable(kernel, tile))]
    if most is not None and most < len(tiles):
        step = next(step for step in count(round(len(tiles) * _GOLDEN)) if gcd(step, len(tiles)) == 1)
        tiles = [tiles[place * step % len(tiles)] for place in range(most)]
    return tuple(tiles)


def jobs_of(profile: ModelProfile, wanted: Iterable[Wanted], batches: Sequence[int]) -> tuple[TuneJob, ...]:
    """One job per file and batch size, the largest batches first: they take longest. Optional files, which another
    tuned file can replace, are left out."""
    needed = [file for file in wanted if not file.optional]
    return tuple(_job(profile, file, batch) for batch in sorted(set(batches), reverse=True) for file in needed)


def _job(profile: ModelProfile, file: Wanted, batch: int) -> TuneJob:
    kernel, sizes = read_name(file.name), dict(file.shape)
    dtype = kernel.dtype if kernel else ""
    moe = file.kernel == "moe"
    return TuneJob(
        id=f"{file.name}@{batch}",
        kernel=file.kernel,
        e=sizes.get("E", 0),
        n=sizes["N"],
        k=profile.dimensions.hidden_size if moe else sizes["K"],
        top_k=file.top,
        fused=file.fused,
        dtype=dtype,
        block=file.block,
        channel=moe and profile.stored("experts") in ("int8-channel", "fp8-channel"),
        batch=batch,
        space=file.name,
    )


def config_text(tiles: Mapping[int, Tile]) -> str:
    """A config file's text, by batch size."""
    return json.dumps({str(batch): dict(tiles[batch]) for batch in sorted(tiles)}, indent=4) + "\n"
