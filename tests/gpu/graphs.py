"""What CUDA graphs and torch.compile cost at start and bring in speed: `cuda_graph_max_bs` of a profile, measured."""

from __future__ import annotations

from typing import Any

import yaml
from tests.gpu import checkpoint
from tests.gpu.measuring import benched
from tests.gpu.stage import BLOCKS, REBLOCKED, Otherwise, Stage, with_what_was_seen

from orchestrator.model.profile import Load

FEW = Load(input=128, output=64, prompts=16, rate=1000, concurrency=4)
MANY = Load(input=128, output=64, prompts=128, rate=1000, concurrency=32)
NONE = ("--", "--disable-cuda-graph")
COMPILED = ("--", "--enable-torch-compile", "--torch-compile-max-bs", "4")
SETTINGS: tuple[tuple[str, int | None, tuple[str, ...]], ...] = (
    ("no graphs", None, NONE),
    ("graphs up to 4", 4, ()),
    ("graphs up to 32", 32, ()),
)
"""Name, cuda_graph_max_bs of the profile, and words of `up`. Not the engine's own sizes: on a GPU of this memory they
go so far that compiling kernels for them takes minutes."""
LEAST_GAIN = 1.2
"""By which graphs have to speed up batches that they hold: a tiny model's decoding is launches, hardly arithmetic."""
MODEL = "graphs"


def graphs(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """One gang with each setting: phases of the start, memory of a rank, tokens a second for few and many requests.

    Started once beforehand with the largest graphs: no setting pays for kernels that another one compiled.
    """
    figures: dict[str, Any] = {"loads": [str(FEW), str(MANY)]}
    with with_what_was_seen(figures):
        _up(stage, SETTINGS[-1][1], ())
        figures["first start"] = stage.gang()["start"]
        for name, size, words in SETTINGS:
            figures[name] = _measured(stage, size, words, (FEW, MANY))
    none, four, many = (figures[name] for name, _, _ in SETTINGS)
    few_gain, many_gain = (round(one["tok_s"][at] / none["tok_s"][at], 2) for at, one in enumerate((four, many)))
    figures |= {"gain of 4 at 4": few_gain, "gain of 32 at 32": many_gain}
    if stage.lab.real and min(few_gain, many_gain) < LEAST_GAIN:
        raise Otherwise(f"graphs bring {few_gain} and {many_gain} times the tokens of none", **figures)
    costs = ", ".join(f"{name} {figures[name]['graphs_s']} s" for name, _, _ in SETTINGS)
    return f"phase graphs: {costs}; tokens a second x{few_gain} for 4 requests, x{many_gain} for 32", figures


def compiled(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """torch.compile, by the engine's own flag: the product has no option for it where it is out of maintenance."""
    figures = _measured(stage, 4, COMPILED, (FEW,))
    return f"with torch.compile: ready after {figures['up_s']} s, {figures['tok_s'][0]:.0f} tok/s", figures


def _measured(stage: Stage, size: int | None, words: tuple[str, ...], loads: tuple[Load, ...]) -> dict[str, Any]:
    took = _up(stage, size, words)
    gang = stage.gang()
    stage.continues(str(gang["service"]["url"]))
    memory = max(int(rank["gpu_memory_bytes"] or 0) >> 20 for node in gang["nodes"] for rank in node["ranks"])
    runs = [benched(stage, load)["serving"] for load in loads]
    return {
        "up_s": round(took, 1),
        "graphs_s": gang["start"]["phases"].get("graphs", 0.0),
        "phases_s": gang["start"]["phases"],
        "rank_mib": memory,
        "tok_s": [round(run["output_tok_s"], 1) for run in runs],
        "itl_median_ms": [round(run["itl_median_ms"], 2) for run in runs],
    }


def _up(stage: Stage, size: int | None, words: tuple[str, ...]) -> float:
    profile = checkpoint.profile(BLOCKS[REBLOCKED], REBLOCKED)
    if not stage.lab.real:
        profile["canary"]["expect_any"] = ["stand-in"]
    profile = {name: value for name, value in profile.items() if name != "cuda_graph_max_bs"}
    if size is not None:
        profile["cuda_graph_max_bs"] = size
    (stage.lab.folder / f"{MODEL}.yml").write_text(yaml.safe_dump(profile))
    return stage.up("--replace", *words, model=MODEL)
