"""What a tuning run tries: jobs by shape and batch size, and the tiles that can be right and fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, product
from math import gcd

from orchestrator.model.profile import ModelProfile
from orchestrator.protocol.tuning import Tile, TuneJob
from orchestrator.tuning.validity import LEAST_DEPTH, read_name, shared_memory, shared_memory_limit
from orchestrator.tuning.wanted import Wanted

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
"""Steps of this part of a range fall everywhere in it, however few; equal steps meet only one depth and stage count."""


def candidates(name: str, most: int | None = None) -> tuple[Tile, ...]:
    """Tiles for the config file of this name: BLOCK_SIZE_K divides the quantisation block, Triton can compile it, and
    the least shared memory that it takes is there on the GPU that the name says. most: so many of them, spread over
    every dimension of the space.

    Raises ValueError for a name that no engine looks for.
    """
    said = read_name(name)
    if said is None:
        raise ValueError(f"no engine uses a file called {name}")
    element = 1 if said.dtype else 2
    limit = shared_memory_limit(said.device)
    found = [
        tile
        for values in product(*_SPACE.values())
        if (tile := dict(zip(_SPACE, values, strict=True)))
        and not (all(said.block) and said.block[1] % tile["BLOCK_SIZE_K"])
        and (element > 1 or tile["BLOCK_SIZE_K"] >= LEAST_DEPTH)
        and (limit is None or shared_memory(tile, element=element) <= limit)
    ]
    if most is not None and most < len(found):
        step = next(step for step in count(round(len(found) * _GOLDEN)) if gcd(step, len(found)) == 1)
        found = [found[place * step % len(found)] for place in range(most)]
    return tuple(found)


def jobs_of(profile: ModelProfile, wanted: Iterable[Wanted], batches: Sequence[int]) -> tuple[TuneJob, ...]:
    """One job a file and batch size, the largest batches, which take longest, first. A file without which another
    tuned one serves is left out."""
    found = [
        _job(profile, one, batch) for batch in sorted(set(batches), reverse=True) for one in wanted if not one.optional
    ]
    return tuple(found)


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
