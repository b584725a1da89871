"""Whether a tuned config can be used (shape, tiles that give wrong text or do not fit the GPU), and what a node has."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from orchestrator.engines.engine import Lookup
from orchestrator.engines.tuned_wanted import Wanted, resolve
from orchestrator.model.gpu_facts import SHARED_MEMORY, facts_of
from orchestrator.model.per_node import collected
from orchestrator.protocol.looks import Holdings
from orchestrator.protocol.severity import Severity

TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
NEEDED = (*TILE, "GROUP_SIZE_M")
LAUNCH = {"num_warps": 4, "num_stages": 3}
"""What Triton takes where a config does not say (CUDAOptions of its NVIDIA backend)."""

_CHECKED = (*NEEDED, *LAUNCH, "num_ctas", "SPLIT_K")
_TAKEN = ("SWAP_AB", "USE_TMA", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Every key of the configs that both wheels bring: numbers, and what is taken as it is."""

LEAST_DEPTH = 32
"""BLOCK_SIZE_K of 8-bit operands (Triton, backends/nvidia/compiler.py:min_dot_size; the GEMM kernel of 0.5.23 with 16
fails to compile on an H100)."""

_CHANNELWISE = "fp8_w8a8_channelwise"
"""Of a GEMM of 0.5.23 (fp8_kernel.py, get_w8a8_channelwise_fp8_configs): no GROUP_SIZE_M; null: CUTLASS is faster."""
_ONE_BYTE = ("fp8_w8a8", "int8_w8a8", _CHANNELWISE)
_DTYPES = "|".join((_CHANNELWISE, "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16", "float32"))

_LARGEST_CONFIG = 1 << 20
_NAME = re.compile(
    r"(?P<kernel>[EN])=(?P<first>\d{1,6}),(?P<letter>[NK])=(?P<second>\d{1,7}),device_name=(?P<device>[\w.+-]{1,64})"
    rf"(?:,dtype=(?P<dtype>{_DTYPES}))?"
    r"(?:,block_shape=\[(?P<n>\d{1,4}), (?P<k>\d{1,4})\])?"
    r"(?P<channel>,per_channel_quant=True)?(?P<down>_down)?\.json"
)


@dataclass(frozen=True, slots=True)
class Name:
    """What a config's file name says. kernel: moe or linear; block: (0, 0) for none; dtype: '' for bf16."""

    kernel: str
    device: str
    dtype: str
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TunedFileFinding:
    """One thing wrong with a file. stop: an engine would fail or answer wrongly with it; note: worth knowing."""

    severity: Severity
    text: str


def read_name(name: str) -> Name | None:
    """A file name taken apart; None for a name that no engine looks for."""
    match = _NAME.fullmatch(name)
    if match is None or (match["kernel"] == "E") != (match["letter"] == "N"):
        return None
    if match["dtype"] == _CHANNELWISE and (match["kernel"] == "E" or match["n"] or match["channel"] or match["down"]):
        return None
    return Name(
        kernel="moe" if match["kernel"] == "E" else "linear",
        device=match["device"],
        dtype=match["dtype"] or "",
        block=(int(match["n"] or 0), int(match["k"] or 0)),
    )


def flaws(name: str, text: str) -> tuple[TunedFileFinding, ...]:
    """Everything wrong with a config, the gravest first."""
    parsed_name = read_name(name)
    if parsed_name is None:
        return (TunedFileFinding(Severity.STOP, "no engine uses a file of this name"),)
    try:
        document = _document(text)
    except (ValueError, RecursionError) as wrong:
        return (TunedFileFinding(Severity.STOP, str(wrong)),)
    stops = _once(wrong for size, config in document.items() for wrong in _entry(parsed_name, size, config))
    return (
        *(TunedFileFinding(Severity.STOP, wrong) for wrong in stops),
        *(TunedFileFinding(Severity.NOTE, remark) for remark in _coverage(document)),
    )


def shared_memory(config: Mapping[str, Any], *, element: int) -> int:
    """Bytes of shared memory that a tile takes at least: one stage of A and B for each buffer of the pipeline.

    Triton 3.6.0 and 3.9.0 keep `num_stages` - 1 buffers (the GEMM and MoE kernels of 0.5.23 compiled for sm_89: 320
    tiles, tests/recorded), 3.1.0 as many or one more. So this is a lower bound, never a promise.
    """
    height, width, depth = (int(config[key]) for key in TILE)
    stages = int(config.get("num_stages", LAUNCH["num_stages"]))
    return max(1, stages - 1) * (height * depth + depth * width) * element


def _document(text: str) -> dict[str, Any]:
    """Raises ValueError or RecursionError for what is none."""
    if len(text) > _LARGEST_CONFIG:
        raise ValueError(f"it has {len(text)} bytes; a config has {_LARGEST_CONFIG} at most")
    try:
        document = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"it is not JSON: {wrong}") from None
    if not isinstance(document, dict) or not document:
        raise ValueError("it is not a JSON object with a config for each batch size")
    return document


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is duplicated")
    return document


def _entry(kernel: Name, size: str, config: Any) -> Iterator[str]:
    channelwise = kernel.dtype == _CHANNELWISE
    if not re.fullmatch(_SIZE, size):
        yield f"the key {size[:40]!r} is not a batch size (the engine reads it as an integer)"
    elif isinstance(config, dict):
        wrong = list(_numbers(config, TILE if channelwise else NEEDED)) or unusable(kernel, config)
        yield from (f"batch size {size}: {reason}" for reason in wrong)
    elif config is not None or not channelwise:
        yield f"batch size {size}: found {config!r:.40}, wanted a config with {', '.join(NEEDED)}"


def unusable(kernel: Name, tile: Mapping[str, Any]) -> Iterator[str]:
    """Why an engine can't use a tile, or would answer wrongly with it, in the file of this name."""
    depth = tile["BLOCK_SIZE_K"]
    if all(kernel.block) and kernel.block[1] % depth:
        yield (
            f"the quantisation block {kernel.block[1]} is not divisible by BLOCK_SIZE_K {depth}: each tile uses a"
            " single scale, so the engine generates wrong text without an error (sglang issue 39626)"
        )
    if kernel.dtype in _ONE_BYTE and depth < LEAST_DEPTH:
        yield f"BLOCK_SIZE_K is {depth}; Triton needs at least {LEAST_DEPTH} for 8-bit products"
    known = facts_of(kernel.device)
    limit = SHARED_MEMORY[known.sm] if known else None
    least = shared_memory(tile, element=1 if kernel.dtype in _ONE_BYTE else 2)
    if limit and least > limit:
        yield (
            f"its tiles need at least {least} bytes of shared memory, but {kernel.device} has {limit}: OutOfResources"
            " at the first such batch (tuned on a larger GPU?)"
        )


def _numbers(config: Mapping[str, Any], needed: Sequence[str]) -> Iterator[str]:
    yield from (f"{key} is missing" for key in needed if key not in config)
    for key, value in config.items():
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65536
        if key not in (*_CHECKED, *_TAKEN):
            yield f"unknown key {key[:40]!r}"
        elif key in _CHECKED and not whole:
            yield f"{key} is {value!r:.40}, wanted an integer of at least 1"
        elif key in (*TILE, "num_warps") and value & (value - 1):
            yield f"{key} is {value}; Triton accepts only powers of two"


def _coverage(document: Mapping[str, Any]) -> Iterator[str]:
    """The engine takes the nearest batch size, however far it is."""
    sizes = [int(size) for size in document if re.fullmatch(_SIZE, size)]
    if sizes and min(sizes) > _DECODE:
        yield f"its smallest batch size is {min(sizes)}: all smaller batches, decoding included, use its tiles"
    elif sizes and max(sizes) < _PREFILL:
        yield f"its largest batch size is {max(sizes)}: all larger batches, prefill included, use its tiles"


_DECODE, _PREFILL = 256, 512
"""A decode step has a token for each running request, a prefill step one for each of the prompts' tokens."""
_SIZE = r"[1-9]\d{0,8}"


def _once(flaws_found: Iterable[str]) -> Iterator[str]:
    """The same at many batch sizes is reported for the first, with their number."""
    for first, *others in collected(
        (re.sub(r"^batch size \d+|\d+ bytes", "", flaw), flaw) for flaw in flaws_found
    ).values():
        yield first + (f" (and at {len(others)} more batch sizes)" if others else "")


class State(str, Enum):
    """tuned: the very file; fallback: another Triton's, or the up projection's; default: none, the engine's built-in
    tiles; fails: the engine ends when it looks for it."""

    TUNED = "tuned"
    FALLBACK = "fallback"
    DEFAULT = "default"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What an engine will take on one node for one wanted file. folder, name, sha256: '' where there is none"""

    state: State
    folder: str = ""
    name: str = ""
    sha256: str = ""
    flaws: tuple[TunedFileFinding, ...] = ()

    @property
    def harms(self) -> bool:
        """Whether an engine would fail or answer wrongly with it."""
        return any(flaw.severity is Severity.STOP for flaw in self.flaws)


def judged(wanted: Wanted, lookup: Lookup, held: Holdings) -> Holding:
    """What becomes of one wanted file on one node."""
    if wanted.kernel == "moe" and lookup.by_triton and (missing := wanted.folder.rpartition("/")[0]) in held.absent:
        return Holding(
            state=State.FAILS,
            flaws=(
                TunedFileFinding(
                    Severity.STOP, f"{missing} does not exist, but the engine reads it: FileNotFoundError"
                ),
            ),
        )
    folder, name = resolve(wanted, lookup, held.folders)
    if not folder:
        return Holding(state=State.DEFAULT)
    text = held.folders[folder][name]
    return Holding(
        state=State.TUNED if (folder, name) == (wanted.folder, wanted.name) else State.FALLBACK,
        folder=folder,
        name=name,
        sha256=digest(text),
        flaws=flaws(name, text),
    )


def digest(text: str) -> str:
    """SHA-256 of a file that was read as text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
