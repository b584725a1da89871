"""docs/prediction.md, made of `planning.prediction` and of what `plan` says of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.support.reference_cluster import GPU_BYTES, gang

from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.planning.offers import offer
from orchestrator.planning.prediction import (
    ARTICLES,
    CASES,
    KV_ERROR,
    MADE,
    Predicted,
    Range,
    checked,
    first_token_factors,
    predict,
    roofline_error,
)  # fmt: skip
from orchestrator.planning.roofline import BATCHES, left_out, speeds
from orchestrator.planning.step_kernels import GAP_S, POINTS, SEEN, SEEN_AT, articles_speed, step

STACK = "sglang-0.5.23"
_NAMES = dict(zip((model for model, _ in CASES), ("FP8 64x64", "INT8", "stock FP8 128x128"), strict=True))


def page() -> str:
    """The whole page."""
    articles = load_profile(ARTICLES)
    told = [predict(load_profile(model), layout, articles) for model, layout in CASES]
    return "\n".join([*_head(), *_speeds(told), *_steps(), *_waits(told), *_memory(), *_check(), *_method()]) + "\n"


def _head() -> Iterator[str]:
    (blocks, _), (int8, _), (stock, _) = CASES
    yield f"""# The prediction

What 4 x 8 L40S with RDMA should give, written on {MADE}, before anybody has run these cases with this program.
FP8 64x64 is {blocks}, INT8 {int8}, stock
{stock}.

The page is made of `planning/prediction.py`; a test compares them. [`certify`](measure.md) puts what an owner measured
beside it (`prediction` in its file).

Each figure is given with its range, low to high. INT8 and FP8 64x64 at TP32 were measured by the articles with SGLang
0.4.4; PP4 x TP8 on the stock checkpoint, whose all-reduces stay inside a node, by nobody."""


def _speeds(told: Iterable[Predicted]) -> Iterator[str]:
    yield "\n## Decoding\n\nTokens/s of all requests together, prompts of 200 tokens, graphs up to the batch.\n"
    rows = ([_case(each), *(_range(each.speeds[batch]) for batch in BATCHES)] for each in told)
    yield from _table(["case", *(f"{batch} at once" for batch in BATCHES)], rows)


def _steps() -> Iterator[str]:
    yield (
        "\n## A step\n\nMilliseconds by either model. The roofline: weights + all-reduces + rest. The kernels:\n"
        "all kernels + all-reduces and hand-overs + the host between two steps.\n"
    )
    rows = []
    for model, layout in CASES:
        profile = load_profile(model)
        by_roofline = speeds(profile, layout).steps
        for batch in BATCHES:
            parts, seen = by_roofline[batch], step(profile, layout, batch, gpu="L40S")
            rows.append(
                [
                    f"{_NAMES[model]}, {layout}",
                    str(batch),
                    _sum(parts.weights_s, parts.reduces_s, parts.rest_s),
                    _sum(sum(seen.kernels.values()), seen.network_s, seen.gap_s),
                ]
            )
    yield from _table(["case", "requests", "roofline", "kernels"], rows)


def _waits(told: Iterable[Predicted]) -> Iterator[str]:
    yield "\n## First token and start\n\nMean seconds to the first token, all prompts at once; seconds of a start.\n"
    rows = (
        [
            _case(each),
            *(_range(each.first_token_s[batch], 1) for batch in BATCHES),
            f"{each.start_s[0]:.0f} to {each.start_s[1]:.0f}",
        ]
        for each in told
    )
    yield from _table(["case", *(f"{batch} at once" for batch in BATCHES), "start"], rows)


def _memory() -> Iterator[str]:
    yield f"\n## KV tokens\n\nAs `plan` counts them for {STACK}, an L40S of 46068 MiB.\n"
    rows = []
    for model, layout in CASES:
        offered = offer(load_profile(model), load_stack(STACK), gang(), gpu_total=GPU_BYTES)
        (tokens,) = (fit.kv_tokens for fit in offered.fits if fit.layout == layout)
        low, high = (round((tokens or 0) * (1 + error), -3) for error in KV_ERROR)
        rows.append([f"{_NAMES[model]}, {layout}", f"{tokens:,}", f"{low:,.0f} to {high:,.0f}"])
    yield from _table(["case", "KV tokens", "range"], rows)


def _check() -> Iterator[str]:
    articles, without = load_profile(ARTICLES), left_out()
    yield (
        "\n## How wrong it is\n\nThe articles' INT8 speeds, right wiring. The roofline is fitted to the other three"
        " points; the\nkernels have none of their speeds. Together: by the errors of both.\n"
    )
    both = checked(articles)
    rows = [
        [
            str(batch),
            f"{speed:.2f}",
            *(f"{value:.0f} ({value / speed - 1:+.1%})" for value in (without[batch], own, both[batch])),
        ]
        for batch, (_, speed) in POINTS.items()
        for own in [articles_speed(articles, batch)]
    ]
    yield from _table(["requests", "measured", "roofline", "kernels", "together"], rows)
    int8, blocks = (f"{factor:.2f}" for factor in first_token_factors().values())
    at_128 = f"{100 * (articles_speed(articles, 128) / POINTS[128][1] - 1):.0f}"
    error = f"{100 * roofline_error():.0f}"
    yield f"""
- With 128 requests the kernels alone are {at_128} % too fast: the data do not carry that figure. The engine of
  the articles was 0.4.4 with other attention and INT8 kernels; their ITL is the same at 300 tokens a request as
  at 678, so it is not the KV cache. The figure of 128 requests rests on the roofline, whose upper bound is the
  kernels' word.
- The weights of the two models come from these same errors, so 'together' is no test that nobody has seen.
- FP8 64x64 of the articles ran beyond its graphs at 128 requests (median of 220 ms between tokens, 581 tokens/s):
  neither model knows what launches cost on those hosts, and the figures above are for steps in a graph.
- Time to the first token: the articles took {int8} (INT8) and {blocks} times (FP8 64x64) what arithmetic at the
  peak and all-reduces at 19 GB/s need. The figures have their mean. Nobody has profiled a prefill on an L40S.
- A start is the slice's phases, 5 and 1 GB/s of disk, and graphs from 20 s (compiled before) to 411 s (the
  articles').
- PP4 x TP8 was checked with nothing: its all-reduces inside a node are an estimate ([layouts](plan.md)), and no
  engine of ours has run 61 layers in stages. Its error of {error} % is TP32's."""


def _method() -> Iterator[str]:
    few, many = SEEN_AT
    gap = f"{1000 * GAP_S:.1f}"
    yield f"""
## Method

1. The kernels of a step of the [slice](../tests/slice/measured.md), on H100 at {few} and {many} requests. What
   does not grow between the two is launches and latency: as long on an L40S. What grows is bound by memory (3.9
   times as long: 3350 and 864 GB/s), else by arithmetic (2.7: 989 and 362 TFLOPS in bf16). Dense products never
   take less than reading their weights at 75 % of the bandwidth.
2. All-reduces and hand-overs by size: NCCL's model of the articles' network, as in `plan`. {gap} ms a step pass
   on the host.
3. Beside it the roofline of `plan`. A figure is the mean of both in logarithms, weighted by the inverse square of
   their errors.
"""
    rows = [
        [
            kind.name,
            f"{1000 * kind.few_s:.2f}",
            f"{1000 * kind.many_s:.2f}",
            kind.grows.value,
            "memory" if kind.memory else "arithmetic",
        ]
        for kind in SEEN
    ]
    yield from _table(["kernels on H100", "ms at 4", "ms at 128", "grows with", "bound by"], rows)


def _case(told: Predicted) -> str:
    return f"{_NAMES[told.model]}, {told.layout}"


def _range(found: Range, digits: int = 0) -> str:
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _sum(*seconds: float) -> str:
    return f"{' + '.join(f'{1000 * each:.1f}' for each in seconds)} = {1000 * sum(seconds):.1f}"


def _table(titles: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
