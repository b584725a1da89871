"""SGLang's own serving benchmark: its command line, and the result file that it writes. Pure.

Sources: bench_serving.py of 0.4.4, benchmark/serving.py of 0.5.23. What differs: from 0.5 on the prefix cache is
flushed only on demand, and the seed is another one unless given; `--output-details` adds every answer's text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

from orchestrator.engines.engine import Engine
from orchestrator.model.benchmark import Load

DATASET, RESULT = "{dataset}", "{result}"
"""Words that the node puts its own paths for."""
LEFT_OUT = {"datasets": "load_dataset = None\n"}
"""Replaces a module that a stack omits: the client needs it only for data sets other than ours."""
PROGRESS = r"(\d{1,9})/(\d{1,9}) \["
"""tqdm's count of answered requests."""
DECODE_LINE = (
    r"Decode batch(?: \[\d{1,9}\])?[.,] #running-req: (\d{1,6}), #token: (\d{1,9}), .{0,200}?"
    r"gen throughput \(token/s\): (\d{1,9}\.\d{1,6}), .{0,80}?#queue-req: (\d{1,6})"
)
"""The leader's line on decoding, in all versions: requests, tokens they hold, tokens a second, requests that wait."""
READ_AT = {1: 482, 4: 1437, 32: 8923, 128: 86816}
"""Tokens held by so many requests in the lines that the articles' decode table was read from."""
_KEYS = {
    "duration_s": "duration",
    "requests_s": "request_throughput",
    "output_tok_s": "output_throughput",
    "e2e_mean_ms": "mean_e2e_latency_ms",
    "e2e_median_ms": "median_e2e_latency_ms",
    "ttft_mean_ms": "mean_ttft_ms",
    "ttft_median_ms": "median_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "itl_mean_ms": "mean_itl_ms",
    "itl_median_ms": "median_itl_ms",
    "itl_p95_ms": "p95_itl_ms",
    "itl_p99_ms": "p99_itl_ms",
    "itl_max_ms": "max_itl_ms",
}
"""Figure -> key of the result, where a version tells it: 0.5.23 has no max_itl_ms."""
_LEFT_OUT = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "server_info")
"""What belongs to single requests, and the engine's arguments, which may hold its API key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run as its client tells it.

    output_tokens: as asked for or counted by the engine; text_tokens: counted again in the texts; None where not told
    texts, errors: of each answer, None where the client does not tell them
    stand_in:      no model answered, or no engine's own client asked
    decode_tok_s:  between the last first token and the first end, where all requests were sent at once; None where the
                   client does not tell, or no two tokens of every request lie there
    raw:           the result without what belongs to single requests, and without the engine's arguments
    """

    completed: int
    input_tokens: int
    output_tokens: int
    text_tokens: int | None
    figures: Mapping[str, float]
    texts: tuple[str, ...] | None
    errors: tuple[str, ...] | None
    stand_in: bool
    decode_tok_s: float | None
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLog:
    """Decoding as the leader's log has it, while all requests of a run decode.

    tok_s:  of the line whose requests hold as many tokens as in the articles' lines, or nearly; tokens: so many
    mean, least, most: of all `lines`
    """

    tok_s: float
    tokens: int
    mean: float
    least: float
    most: float
    lines: int


def decoding(rows: Iterable[Sequence[float]], load: Load) -> DecodeLog | None:
    """From what DECODE_LINE found during a run. None where too few lines show all of its requests and none that waits:
    the first and the last of them count other steps too. Where the articles read no line, the middle of the answers."""
    sound = (row for row in rows if len(row) == 4 and all(map(math.isfinite, row)))
    whole = [row for row in sound if row[0] == load.prompts and row[3] == 0][1:-1]
    if not whole:
        return None
    at = READ_AT.get(load.prompts, load.prompts * (load.input + load.output // 2))
    nearest = min(whole, key=lambda row: abs(row[1] - at))
    speeds = [row[2] for row in whole]
    return DecodeLog(
        tok_s=nearest[2],
        tokens=int(nearest[1]),
        mean=sum(speeds) / len(speeds),
        least=min(speeds),
        most=max(speeds),
        lines=len(speeds),
    )


def more_at_once(rows: Iterable[Sequence[float]], load: Load) -> int:
    """Requests that the engine had at once by its log, where those are more than a run sends; 0 where they are not.

    One more may be the agent's own probe.
    """
    sound = (row for row in rows if len(row) == 4 and all(map(math.isfinite, row)))
    most = max((int(row[0] + row[3]) for row in sound), default=0)
    return most if most > load.concurrency + 1 else 0


def without_arguments(text: str) -> str:
    """A result file without the engine's arguments, which may hold its API key; lines that are no JSON are left out."""
    kept = []
    for line in filter(str.strip, text.splitlines()):
        with suppress(ValueError, RecursionError):
            told = json.loads(line)
            if isinstance(told, dict):
                kept.append(json.dumps({key: value for key, value in told.items() if key != "server_info"}) + "\n")
    return "".join(kept)


def command(engine: Engine, load: Load, *, url: str, model: str, tokenizer: str) -> tuple[str, ...]:
    """The module and its arguments. model: the served name; tokenizer: its directory on the node."""
    address = urlsplit(url)
    return (
        engine.bench["serving"],
        *("--backend", "sglang-oai", "--host", address.hostname or "127.0.0.1", "--port", str(address.port or 80)),
        *("--model", model, "--tokenizer", tokenizer),
        *("--dataset-name", "random", "--dataset-path", DATASET, "--random-range-ratio", "1"),
        *("--random-input-len", str(load.input), "--random-output-len", str(load.output)),
        *("--num-prompts", str(load.prompts), "--request-rate", str(load.rate)),
        *("--max-concurrency", str(load.concurrency), "--seed", "1", "--output-file", RESULT),
        *engine.bench_flags,
    )


def read(text: str) -> Result:
    """The last line of a result file. Raises ValueError where it is no result."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("the result file is empty")
    try:
        told = json.loads(lines[-1])
        figures = {name: _finite(told[key]) for name, key in _KEYS.items() if told.get(key) is not None}
        total = told.get("total_throughput")
        figures["total_tok_s"] = (
            _finite(total)
            if total is not None
            else _finite(told["input_throughput"]) + _finite(told["output_throughput"])
        )
        if not {"duration_s", "output_tok_s"} <= figures.keys():
            raise ValueError("it has no duration or no throughput")
        if "max_itl_ms" not in told and told.get("itls"):
            figures["itl_max_ms"] = 1000 * max((_finite(gap) for gaps in told["itls"] for gap in gaps), default=0.0)
        again = told.get("total_output_tokens_retokenized")
        return Result(
            completed=int(told["completed"]),
            input_tokens=int(told["total_input_tokens"]),
            output_tokens=int(told["total_output_tokens"]),
            text_tokens=None if again is None else int(again),
            figures=figures,
            texts=_texts(told, "generated_texts"),
            errors=_texts(told, "errors"),
            stand_in="stand_in" in told or "stand_in" in (told.get("server_info") or {}),
            decode_tok_s=_steady(told),
            raw={key: value for key, value in told.items() if key not in _LEFT_OUT},
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as wrong:
        raise ValueError(f"not a benchmark result: {type(wrong).__name__} {wrong}") from None


def _steady(told: Mapping[str, Any]) -> float | None:
    """Tokens a second while every request decodes. A chunk counts as a token: not so with speculative decoding."""
    firsts, gaps = told.get("ttfts"), told.get("itls")
    if not isinstance(firsts, list) or not isinstance(gaps, list) or not firsts or len(firsts) != len(gaps):
        return None
    times = [list(accumulate(map(_finite, [first, *rest]))) for first, rest in zip(firsts, gaps, strict=True)]
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    count = sum(begin < at <= end for each in times for at in each)
    return count / (end - begin) if end > begin and count >= len(times) else None


def flaw(result: Result, load: Load) -> str:
    """Why a run's figures mean nothing: an answer that failed or is empty, missing tokens; '' where it is sound."""
    error = next((error for error in result.errors or () if error), "")
    if result.completed != load.prompts:
        return f"{result.completed} of {load.prompts} requests were answered" + (f": {error[:200]}" if error else "")
    if result.output_tokens != load.prompts * load.output:
        return f"{result.output_tokens} tokens were returned, {load.prompts * load.output} requested"
    empty = sum(not text for text in result.texts or ())
    if empty:
        return f"{empty} of {load.prompts} answers are empty"
    if result.text_tokens is not None and result.text_tokens < load.prompts:
        return f"the {load.prompts} answers contain only {result.text_tokens} tokens of text: some are empty"
    return ""


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"found {number} among its figures")
    return number


def _texts(told: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    values = told.get(key)
    return tuple(str(value or "") for value in values) if isinstance(values, list) else None
