"""tests/slice/measured.md and its rows of docs/proven.yml: what the figures hold, failures too."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.gpu import page
from tests.gpu.figures import Figures, Result
from tests.slice import judging

APART = "ranks apart"
PAGE = Path(__file__).with_name("measured.md")
_HEAD = """\
# The slice on GPUs

Written by `make slice` (tests/slice) from `tests/slice/figures.json`. The model is a DeepSeek-V3 of 61 layers and 256
experts with random weights, cut so that each of the few ranks here has the shapes and the weights of one of 32; it is
made of 128x128 blocks and re-blocked to 64x64 by `checkpoint reblock`. Nodes are namespaces of one machine with their
own GPUs, network and real SSH. *With an L40S's memory* means that another process holds so much of each card that 44.5
GiB are left.

So weights, KV cache, graphs and free memory of a rank are those of a rank of the real model at TP32. Speeds are not:
the GPUs are others, the all-reduces have fewer members and no RDMA, and the weights are random. One rank alone
has none, and a gang of half of the GPUs has twice the weights a rank. The machine of the newest results:
"""
_PHASES = ("rendezvous", "nccl", "weights", "kv-cache", "graphs", "warm-up")
_KINDS = ("all-reduce", "experts", "quantised products", "attention", "quantisation", "norms", "other")


def written(figures: Figures) -> str:
    """The complete page."""
    head = page.page(figures, _HEAD, details=False).rstrip()
    return "\n".join([head, "", *_tables(figures)]).rstrip() + "\n"


def served(figures: Figures) -> list[Result]:
    """The last result of each part that served the slice, of each engine; of several layouts or gangs, one for each."""
    last = {
        (part.step, part.engine): part
        for result in figures.results
        if not result.step.startswith(APART)
        for part in _each(result)
    }
    return list(last.values())


def _each(result: Result) -> Iterator[Result]:
    if result.figures.get("loads"):
        yield result
    for name, seen in result.figures.items():
        if isinstance(seen, dict) and seen.get("loads"):
            yield replace(result, step=f"{result.step}, {name}", figures=seen)


def _part(result: Result) -> str:
    """With the engine's version."""
    return f"{result.step} ({_version(result)})" if result.engine else result.step


def _version(result: Result) -> str:
    return result.engine.removeprefix("SGLang ").partition(" ")[0]


def _tables(figures: Figures) -> Iterator[str]:
    parts = served(figures)
    if not parts:
        return
    yield from _memory([part for part in parts if part.figures.get("engine")])
    yield from _speeds(parts)
    yield from _profiles(parts)
    yield from _starts(parts)
    yield from _apart(figures)
    yield from _posed(parts)
    yield from _swept(figures)
    yield from _where(parts)


def _table(title: str, words: str, columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> Iterator[str]:
    yield f"## {title}\n"
    if words:
        yield f"{words}\n"
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |" for row in rows)
    yield ""


def _memory(parts: Sequence[Result]) -> Iterator[str]:
    columns = (
        *("part", "machine", "GPU", "fraction", "before weights", "weights", "KV tokens"),
        *("decode graphs", "prefill graphs", "least free"),
    )
    words = (
        "GiB a rank, plan / engine (the rank that has least). Least free: of the fullest card, by NVML, at any time."
    )
    yield from _table("Memory", words, columns, map(_memory_row, parts))


_NOT_KEPT = "-"
"""Where a part ended before it had compared."""


def _memory_row(result: Result) -> Sequence[Any]:
    have = result.figures
    plan, engine = have.get("plan_for_this_card") or {}, have.get("engine", {})
    before = round(plan["gpu_total_gib"] - plan["overhead_gib"], 2) if plan else _NOT_KEPT
    tokens = f"{plan['kv_tokens']:,}" if plan else _NOT_KEPT
    return (
        _part(result),
        result.gpus.partition(",")[0],
        plan.get("gpu_total_gib"),
        engine.get("fraction"),
        f"{before} / {_least(engine.get('before_weights_gib'))}",
        f"{plan.get('weights_gib', _NOT_KEPT)} / {_most(engine.get('weights_gib'))}",
        f"{tokens} / {_least(engine.get('kv_tokens')) or 0:,}",
        _most(engine.get("graphs_gib")),
        _most(engine.get("prefill_graphs_gib")),
        have.get("memory", {}).get("least_free_gib"),
    )


def _least(numbers: Sequence[float] | None) -> float | None:
    return min(numbers) if numbers else None


def _most(numbers: Sequence[float] | None) -> float | None:
    return max(numbers) if numbers else None


def _speeds(parts: Sequence[Result]) -> Iterator[str]:
    columns = (
        "part",
        "requests",
        "tok/s",
        "step ms",
        "in a graph",
        "first token ms",
        "next token ms",
        "p99 ms",
        "all s",
    )
    words = "Requests of 200 tokens with answers of 200, sent at once. tok/s: while all of them were answered."

    def rows() -> Iterator[Sequence[Any]]:
        for result in parts:
            asked = {**result.figures["loads"], **_long(result.figures)}
            for requests, seen in asked.items():
                step = (seen.get("steps") or [{}])[-1]
                yield (
                    *(_part(result), requests, seen.get("decode_tok_s"), step.get("step_ms"), step.get("graph")),
                    *(seen.get("ttft_mean_ms"), seen.get("itl_median_ms"), seen.get("itl_p99_ms"), seen.get("wall_s")),
                )

    yield from _table("Speed", words, columns, rows())


def _long(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {"1 of 100,000 tokens": figures["long"]} if figures.get("long") else {}


def _profiles(parts: Sequence[Result]) -> Iterator[str]:
    columns = (
        "part",
        "requests",
        "rank",
        "kernels",
        "ms a step",
        "busy",
        *_KINDS,
        "waits",
        "us a launch",
        "us between",
    )
    words = (
        "Kernels of each rank by the engine's profiler, milliseconds of one decode step. Waits: how much longer a"
        " rank's all-reduces last than those of the rank that others wait for. A launch: median of the host's time in"
        " it, and from one to the next; a whole graph is one launch."
    )

    def rows() -> Iterator[Sequence[Any]]:
        for result in parts:
            for profile in result.figures.get("profiles", ()):
                for rank, seen in profile.get("ranks", {}).items():
                    yield (_part(result), profile["requests"], f"TP{rank}", *_kernels(profile, rank, seen))

    yield from _table("Where a step's time goes", words, columns, rows())


def _kernels(profile: Mapping[str, Any], rank: str, seen: Mapping[str, Any]) -> Iterator[Any]:
    steps, kinds = profile["steps"], seen.get("by_kind_ms", {})
    named = {kind: kinds.get(kind, 0.0) for kind in _KINDS[:-1]}
    rest = sum(kinds.values()) - sum(named.values())
    yield round(seen["kernels"] / steps)
    for total in (seen.get("span_ms", 0.0), seen.get("busy_ms", 0.0), *named.values(), rest):
        yield round(total / steps, 2)
    yield round(profile["waiting_ms"][rank] / steps, 2)
    yield seen.get("launch_us")
    yield seen.get("between_us")


def _starts(parts: Sequence[Result]) -> Iterator[str]:
    columns = ("part", "ready after s", *_PHASES)

    def rows() -> Iterator[Sequence[Any]]:
        for result in parts:
            phases = (result.figures.get("start") or {}).get("phases", {})
            yield (_part(result), result.figures.get("up_s"), *(phases.get(phase) for phase in _PHASES))

    yield from _table("Starts", "Seconds, by phase, of the slowest node.", columns, rows())


def _apart(figures: Figures) -> Iterator[str]:
    alone: dict[str, Any] = {}
    for result in figures.results:
        if result.step.startswith(APART):
            alone |= result.figures
    if not alone:
        return
    columns = (
        "rank",
        "ready after s",
        "tok/s 1",
        "32",
        "128",
        "2,000: first ms",
        "next",
        "100,000: first ms",
        "next",
        "",
    )
    words = "One rank of 32 alone on a GPU, without all-reduces; two side by side. Prompts of 2,000 tokens: 4 at once."

    def rows() -> Iterator[Sequence[Any]]:
        for name, seen in alone.items():
            speeds = (seen.get("loads", {}).get(count, {}).get("decode_tok_s") for count in ("1", "32", "128"))
            middle, long = seen.get("2000 tokens", {}), seen.get("100000 tokens", {})
            times = (one.get(key) for one in (middle, long) for key in ("ttft_mean_ms", "itl_median_ms"))
            failed = " ".join(str(seen.get("failed", "")).split()).replace("|", "\\|")[:160]
            yield (name, seen.get("up_s"), *speeds, *times, failed)

    yield from _table("A rank alone", words, columns, rows())


def _posed(parts: Sequence[Result]) -> Iterator[str]:
    with_kernels = [part for part in parts if part.figures.get("kernels")]
    if not with_kernels:
        return
    columns = ("kernel", "forms", "shared memory, most bytes", "registers, most", "spilled, most")
    words = (
        "Triton kernels that the engine loaded on a GPU that said it was an L40S: PTX for sm_89, which ptxas assembled"
        " for sm_90, so registers and spills are sm_90's. An L40S gives a block 101,376 bytes."
    )
    kernels = with_kernels[-1].figures["kernels"].items()
    rows = (
        (name, *(f"{seen[key]:,}" for key in ("forms", "shared", "registers", "spilled"))) for name, seen in kernels
    )
    yield from _table("As an L40S is asked for", words, columns, rows)


def _swept(figures: Figures) -> Iterator[str]:
    last = {result.engine: result for result in figures.of_step("sweep") if result.figures.get("candidates")}
    if not last:
        return

    def rows() -> Iterator[Sequence[Any]]:
        for result in last.values():
            for name, state, cause, start_s, points in result.figures["candidates"]:
                yield from ((name, _version(result), start_s, *point) for point in points)
                if not points:
                    yield (name, _version(result), start_s, "", "", "", "", cause or state)

    columns = ("layout", "engine", "ready after s", "requests", "tok/s", "next token ms", "runs", "noise")
    yield from _table("Layouts, swept", "", columns, rows())


def _where(parts: Sequence[Result]) -> Iterator[str]:
    columns = ("part", "rank", "may use", "beside its GPU", "lowest MHz", "slowed by")

    def rows() -> Iterator[Sequence[Any]]:
        for result in parts:
            memory = result.figures.get("memory", {})
            while_asked = memory.get("lowest_sm_mhz_while", {}).items()
            lowest = min((mhz for what, mhz in while_asked if what.endswith("requests")), default=None)
            slowed = sorted({why for reasons in memory.get("slowed_by", {}).values() for why in reasons})
            for rank, seen in result.figures.get("affinity", {}).items():
                yield (_part(result), rank, seen["may_use"], seen["beside_its_gpu"], lowest, ", ".join(slowed))

    yield from _table("Processors and clocks", "", columns, rows())


@dataclass(frozen=True)
class Row:
    """Figures of a claim, and the day of the newest result that they come from."""

    figures: str
    date: datetime.date

    @classmethod
    def of(cls, figures: str, results: Sequence[Result]) -> Row:
        return cls(figures, datetime.date.fromisoformat(max(result.at for result in results)[:10]))


def rows(figures: Figures) -> dict[str, Row]:
    """Of the claims in docs/proven.yml that these results prove, by id; none that failed, or was not run."""
    found: dict[str, Row] = {}
    parts = [result for result in served(figures) if result.figures.get("plan_above_engine")]
    off = [result.figures["plan_above_engine"] for result in parts]
    if parts and not any(map(judging.off, off)):
        worst = {name: max(abs(one.get(name, 0.0)) for one in off) for name in ("weights", "kv_tokens")}
        said = (
            f"weights within {worst['weights']:.1%} and KV tokens within {worst['kv_tokens']:.1%}"
            f" in {len(parts)} starts on {_machines(parts)}"
        )
        found["slice-memory"] = Row.of(said, parts)
    if kills := figures.of_step("kill"):
        found["slice-kill"] = Row.of(_kills_in_short(kills), kills)
    return found


def _machines(results: Sequence[Result]) -> str:
    names = dict.fromkeys(result.gpus.partition(",")[0].removesuffix(" 80GB HBM3") for result in results)
    return " and ".join(names).replace("NVIDIA ", "")


def _kills_in_short(kills: Sequence[Result]) -> str:
    right = sum(result.outcome == "as it should" for result in kills)
    seconds = [result.figures["told_s"] for result in kills if result.figures.get("told_s") is not None]
    named = f", named after {min(seconds):.1f} to {max(seconds):.1f} s" if seconds else ""
    return f"{right} of {len(kills)} on {_machines(kills)}{named}"
