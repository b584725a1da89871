"""Which files one engine will look for: model, layout, GPU, Triton and engine version to names and places."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.engines.tuned_files import Lookup, moe_root
from orchestrator.engines.tuned_lookup import device_name, linear_name, moe_name, triton_folder, triton_version
from orchestrator.engines.tuned_shapes import experts, linears
from orchestrator.model.profile import ModelProfile, Quantisation
from orchestrator.protocol.layout import Layout

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
    """

    kernel: Kernel
    part: str
    shape: tuple[tuple[str, int], ...]
    name: str
    folder: str
    optional: bool = False
    block: tuple[int, int] = (0, 0)

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
    device = device_name(gpu)
    return (
        *_moe(profile, layout, lookup, device, moe_folder(lookup, triton, moe_directory)),
        *_linear(profile, layout, lookup, device),
    )


def moe_folder(lookup: Lookup, triton: str, moe_directory: str = "") -> str:
    """Where a MoE config is looked for first."""
    root = moe_root(lookup, moe_directory)
    return f"{root}/{triton_folder(triton or 'X.Y.Z')}" if lookup.by_triton else root


def _moe(profile: ModelProfile, layout: Layout, lookup: Lookup, device: str, folder: str) -> Iterator[Wanted]:
    moe = experts(profile, layout, lookup)
    stored = profile.stored("experts")
    if moe is None or stored not in MOE_DTYPES:
        return
    channel = lookup.channel_in_name and stored in ("int8-channel", "fp8-channel")
    for down in (False, True) if lookup.down else (False,):
        yield Wanted(
            kernel="moe",
            part=("down projection of the experts" if down else "experts")
            + (", with the shared expert fused" if moe.fused else ""),
            shape=(("E", moe.number), ("N", moe.inner)),
            name=moe_name(
                moe.number,
                moe.inner,
                device,
                MOE_DTYPES[stored],
                profile.block,
                channel=channel,
                down=down,
                spaced=lookup.spaced,
            ),
            folder=folder,
            optional=down,
            block=profile.block,
        )


def _linear(profile: ModelProfile, layout: Layout, lookup: Lookup, device: str) -> Iterator[Wanted]:
    """Only block-FP8 GEMMs are Triton's here: INT8 and per-channel FP8 go to CUTLASS kernels, bf16 to cuBLAS."""
    if profile.quantisation != "fp8-block":
        return
    for gemm in linears(profile, layout, lookup):
        yield Wanted(
            kernel="linear",
            part=gemm.part,
            shape=(("N", gemm.rows), ("K", gemm.columns)),
            name=linear_name(gemm.rows, gemm.columns, device, profile.block, spaced=lookup.spaced),
            folder=lookup.linear,
            block=profile.block,
        )


@dataclass(frozen=True, slots=True)
class TunedFile:
    """What an engine will take for a wanted file. folder: '' for its built-in default; fallback: not the first place"""

    folder: str
    name: str
    fallback: bool


def resolve(wanted: Wanted, lookup: Lookup, folders: Mapping[str, Collection[str]]) -> TunedFile:
    """The file that the version's own search ends at. folders: names by folder, as one node has them.

    0.5.23 (get_moe_configs): the running Triton's folder, then all others newest first, then for a down projection
    the up projection's file.
    """
    for name in (wanted.name, wanted.name.replace("_down.json", ".json") if wanted.optional else wanted.name):
        for folder in _places(wanted, lookup, folders):
            if name in folders.get(folder, ()):
                return TunedFile(folder, name, fallback=folder != wanted.folder)
    return TunedFile("", "", fallback=False)


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
