"""Which tuned kernel configs one engine will look for: model, layout, GPU, Triton and version to names and places.

Names are the same in every version that was read: `get_config_file_name` of fused_moe.py (0.4.4) and
fused_moe_triton_config.py (0.5), `get_w8a8_block_fp8_configs` of fp8_kernel.py. Shapes follow by formula from a
checkpoint's dimensions and a layout: `srt/models/deepseek_v2.py` of both versions (DeepseekV2AttentionMLA,
DeepseekV2MLP, DeepseekV2MoE) and, for other attention, `srt/layers/linear.py` (QKVParallelLinear); expert parallelism:
`srt/layers/moe/fused_moe_triton/layer.py` (FusedMoE.__init__) of 0.5.23. Pipeline parallelism deals out whole layers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.engines.cuts import Matrix, attention_matrices, kept_whole
from orchestrator.engines.engine import Lookup, moe_root
from orchestrator.model.profile import ModelProfile, Quantisation
from orchestrator.protocol.planned import Layout

Kernel = Literal["moe", "linear"]

MOE_DTYPES: Mapping[Quantisation, str] = {
    "none": "",
    "fp8-block": "fp8_w8a8",
    "fp8-channel": "fp8_w8a8",
    "int8-channel": "int8_w8a8",
}
"""get_config_dtype_str of both versions. Experts in int4 groups go to Marlin and MXFP4 ones to triton_kernels: neither
reads such a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One file that an engine looks for.

    part:     which of the model's matrices it is for
    shape:    its E and N, or N and K, as the name has them
    folder:   where it is looked for first: below site-packages, or absolute where a variable replaces the directory
    optional: without it another tuned file serves, and no default
    block:    the checkpoint's quantisation block (n, k), (0, 0) for none
    top:      experts that a token goes through; 0 for a linear layer
    fused:    the last of the experts is the shared one, through which every token goes
    """

    kernel: Kernel
    part: str
    shape: tuple[tuple[str, int], ...]
    name: str
    folder: str
    optional: bool = False
    block: tuple[int, int] = (0, 0)
    top: int = 0
    fused: bool = False

    @property
    def words(self) -> str:
        """`E=257, N=64`."""
        return ", ".join(f"{letter}={size}" for letter, size in self.shape)


def wanted_files(
    profile: ModelProfile, layout: Layout, lookup: Lookup, *, gpu: str, triton: str, moe_directory: str = ""
) -> tuple[Wanted, ...]:
    """Every file that an engine looks for, MoE first.

    gpu:           as NVML names it (NVIDIA L40S)
    triton:        version, '' where it is not known: then the newest folder's place can't be named
    moe_directory: value of the version's environment variable, '' where it is not set
    """
    device, root = device_name(gpu), moe_root(lookup, moe_directory)
    folder = f"{root}/{triton_folder(triton or 'X.Y.Z')}" if lookup.by_triton else root
    return (*_moe(profile, layout, lookup, device, folder), *_linear(profile, layout, lookup, device))


def _moe(profile: ModelProfile, layout: Layout, lookup: Lookup, device: str, folder: str) -> Iterator[Wanted]:
    moe = experts(profile, layout, lookup)
    stored = profile.stored("experts")
    if moe is None or stored not in MOE_DTYPES:
        return
    shape = (("E", moe.number), ("N", moe.inner))
    channel = lookup.channel_in_name and stored in ("int8-channel", "fp8-channel")
    for down in (False, True) if lookup.down else (False,):
        part = "down projection of the experts" if down else "experts"
        if moe.fused:
            part += ", with the shared expert fused"
        yield Wanted(
            kernel="moe",
            part=part,
            shape=shape,
            name=file_name(lookup, shape, device, MOE_DTYPES[stored], profile.block, channel=channel, down=down),
            folder=folder,
            optional=down,
            block=profile.block,
            top=moe.top,
            fused=moe.fused,
        )


def _linear(profile: ModelProfile, layout: Layout, lookup: Lookup, device: str) -> Iterator[Wanted]:
    """Only block-FP8 GEMMs are Triton's here: INT8 and per-channel FP8 go to CUTLASS kernels, bf16 to cuBLAS."""
    if profile.quantisation != "fp8-block":
        return
    for gemm in linears(profile, layout, lookup):
        shape = (("N", gemm.rows), ("K", gemm.columns))
        yield Wanted(
            kernel="linear",
            part=gemm.part,
            shape=shape,
            name=file_name(lookup, shape, device, "fp8_w8a8", profile.block),
            folder=lookup.linear,
            block=profile.block,
        )


def resolve(wanted: Wanted, lookup: Lookup, folders: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """Folder and name of the file that the version's own search ends at, '' for its built-in default. folders: names by
    folder, as one node has them.

    0.5.23 (get_moe_configs): the running Triton's folder, then all others newest first, then for a down projection
    the up projection's file.
    """
    for name in (wanted.name, wanted.name.replace("_down.json", ".json") if wanted.optional else wanted.name):
        for folder in _places(wanted, lookup, folders):
            if name in folders.get(folder, ()):
                return folder, name
    return "", ""


def _places(wanted: Wanted, lookup: Lookup, folders: Mapping[str, Collection[str]]) -> list[str]:
    if wanted.kernel != "moe" or not lookup.by_triton:
        return [wanted.folder]
    root = wanted.folder.rpartition("/")[0]
    versions = {
        folder: version
        for folder in folders
        if folder.rpartition("/")[0] == root and (version := triton_version(folder.rpartition("/")[2]))
    }
    others = sorted((folder for folder in versions if folder != wanted.folder), key=versions.__getitem__, reverse=True)
    return [wanted.folder, *others]


_FUSING_ARCHITECTURES = ("DeepseekV3ForCausalLM",)
"""DeepseekV2ForCausalLM.fused_shared_experts_architecture and its subclasses that keep it (0.5.23)."""
_FUSED_EXPERTS = 256
"""The number of routed experts for which a plain checkpoint's one shared expert is fused (0.5.23)."""


def device_name(gpu: str) -> str:
    """A GPU's name as file names have it: torch.cuda.get_device_name with underscores (NVIDIA_L40S)."""
    return gpu.strip().replace(" ", "_")


def file_name(
    lookup: Lookup,
    shape: Sequence[tuple[str, int]],
    device: str,
    dtype: str,
    block: tuple[int, int],
    *,
    channel: bool = False,
    down: bool = False,
) -> str:
    """A config's file name. dtype: '' for bf16; block: (0, 0) for none; channel: named so by the version."""
    parts = [f"{letter}={size}" for letter, size in shape] + [f"device_name={device}"]
    parts += [f"dtype={dtype}"] if dtype else []
    between = ", " if lookup.spaced else ","
    parts += [f"block_shape=[{block[0]}{between}{block[1]}]"] if all(block) else []
    parts += ["per_channel_quant=True"] if channel else []
    ending = "_down.json" if down else ".json"
    return ",".join(parts) + ending


def triton_folder(version: str) -> str:
    """`triton_3_8_0` for Triton 3.8.0."""
    return f"triton_{version.replace('.', '_')}"


def triton_version(folder: str) -> tuple[int, ...] | None:
    """(3, 8, 0) of `triton_3_8_0`; None for what is no such folder."""
    if not re.fullmatch(r"triton_\d+(?:_\d+)*", folder):
        return None
    return tuple(int(number) for number in folder.removeprefix("triton_").split("_"))


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer on one GPU. number: E; inner: N, one expert's share; fused: the shared one is in E; top:
    how many of them a token goes through, with that one (srt/models/deepseek_v2.py: top_k_for_moe)."""

    number: int
    inner: int
    fused: bool
    top: int


def experts(profile: ModelProfile, layout: Layout, lookup: Lookup) -> Experts | None:
    """The fused MoE kernel's shape; None for a model without experts. On a GPU of compute capability 8.0 or newer a
    shared expert may be one of the routed ones."""
    dims, expert = profile.dimensions, layout.expert_parallel
    if not dims.n_routed_experts:
        return None
    fused = (
        lookup.fuses_shared
        and profile.architecture in _FUSING_ARCHITECTURES
        and (dims.n_routed_experts, dims.n_shared_experts, expert) == (_FUSED_EXPERTS, 1, 1)
    )
    ways = layout.tensor_parallel // expert
    return Experts(
        dims.n_routed_experts // expert + fused,
        dims.moe_intermediate_size // ways,
        fused,
        dims.num_experts_per_tok + fused,
    )


def linears(profile: ModelProfile, layout: Layout, lookup: Lookup) -> tuple[Matrix, ...]:
    """Every linear layer that runs in the checkpoint's quantisation, each shape with its first name."""
    matrices: dict[tuple[int, int], Matrix] = {}
    for matrix in (*_attention(profile, layout, lookup), *_feed_forward(profile, layout, lookup)):
        if matrix.rows and matrix.columns:
            matrices.setdefault((matrix.rows, matrix.columns), matrix)
    return tuple(matrices.values())


def _attention(profile: ModelProfile, layout: Layout, lookup: Lookup) -> Iterator[Matrix]:
    ways = layout.tensor_parallel // layout.attention_data_parallel
    first, second, *rest = attention_matrices(profile.dimensions, ways)
    if first.part == "q_a_proj" and lookup.fuses_qkv_a:
        yield Matrix("fused_qkv_a_proj_with_mqa", first.rows + second.rows, first.columns)
    else:
        yield from (first, second)
    yield from rest


def _feed_forward(profile: ModelProfile, layout: Layout, lookup: Lookup) -> Iterator[Matrix]:
    dims, tensor = profile.dimensions, layout.tensor_parallel
    whole_dense, whole_shared = kept_whole(profile, tensor) if layout.expert_parallel > 1 else (False, False)
    if dims.first_k_dense_replace or not dims.n_routed_experts:
        yield from _mlp("dense layers", dims.hidden_size, dims.intermediate_size, 1 if whole_dense else tensor)
    moe = experts(profile, layout, lookup)
    if moe and dims.n_shared_experts and not moe.fused:
        inner = dims.moe_intermediate_size * dims.n_shared_experts
        yield from _mlp("shared experts", dims.hidden_size, inner, 1 if whole_shared else tensor)


def _mlp(words: str, hidden: int, inner: int, ways: int) -> Iterator[Matrix]:
    yield Matrix(f"gate_up_proj of {words}", 2 * inner // ways, hidden)
    yield Matrix(f"down_proj of {words}", hidden, inner // ways)
