"""What a tuning run tries: jobs by shape and batch size, and the tiles that an engine can use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, product
from math import gcd

from orchestrator.engines.tuned_validity import read_name, unusable
from orchestrator.engines.tuned_wanted import Wanted
from orchestrator.model.profile import ModelProfile
from orchestrator.tuning.messages import Tile, TuneJob

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
    said = read_name(name)
    if said is None:
        raise ValueError(f"no engine uses a file called {name}")
    space = (dict(zip(_SPACE, values, strict=True)) for values in product(*_SPACE.values()))
    found = [tile for tile in space if not any(unusable(said, tile))]
    if most is not None and most < len(found):
        step = next(step for step in count(round(len(found) * _GOLDEN)) if gcd(step, len(found)) == 1)
        found = [found[place * step % len(found)] for place in range(most)]
    return tuple(found)


def jobs_of(profile: ModelProfile, wanted: Iterable[Wanted], batches: Sequence[int]) -> tuple[TuneJob, ...]:
    """One job per file and batch size, the largest batches first: they take longest. Optional files, which another
    tuned file can replace, are left out."""
    needed = [one for one in wanted if not one.optional]
    return tuple(_job(profile, one, batch) for batch in sorted(set(batches), reverse=True) for one in needed)


def _job(profile: ModelProfile, one: Wanted, batch: int) -> TuneJob:
    said, sizes = read_name(one.name), dict(one.shape)
    dtype = said.dtype if said else ""
    moe = one.kernel == "moe"
    return TuneJob(
        id=f"{one.name}@{batch}",
        kernel=one.kernel,
        e=sizes.get("E", 0),
        n=sizes["N"],
        k=profile.dimensions.hidden_size if moe else sizes["K"],
        top_k=profile.dimensions.num_experts_per_tok if moe else 0,
        dtype=dtype,
        block=one.block,
        channel=moe and profile.stored("experts") in ("int8-channel", "fp8-channel"),
        batch=batch,
        space=one.name,
    )


def config_text(tiles: Mapping[int, Tile]) -> str:
    """A config file's text, by batch size."""
    import json

    return json.dumps({str(batch): dict(tiles[batch]) for batch in sorted(tiles)}, indent=4) + "\n"
