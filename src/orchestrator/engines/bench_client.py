"""SGLang's own serving benchmark: its command line, and the result file that it writes. Pure.

Sources: bench_serving.py of 0.4.4, benchmark/serving.py of 0.5.23. What differs: from 0.5 on the prefix cache is
flushed only on demand, and the seed is another one unless given; `--output-details` adds every answer's text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

from orchestrator.engines.engine import Engine
from orchestrator.model.profile import Load
from orchestrator.protocol.errors import InputError

DATASET, RESULT = "dataset.json", "result.jsonl"
"""Files of a run of the client."""
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "LD_PRELOAD": "",
    "NO_PROXY": "*",
    "no_proxy": "*",
    "PYTHONUNBUFFERED": "1",
}
"""No GPU, no address but the engine's, no internet for the client."""
KEY = "OPENAI_API_KEY"
REFUSED = re.compile(r"\b(?:Unauthorized|401)\b")
"""What both versions' clients end with where their first request is refused."""
BUSY = re.compile(r"\b400\b.*/flush_cache\b")
"""What it ends with, before its first request, where the engine has one: an agent's probe is one. The engine then
flushes no cache (managers/scheduler.py, flush_cache)."""
LEFT_OUT = {"datasets": "load_dataset = None\n"}
"""Replaces a module that a stack omits: the client needs it only for data sets other than ours."""
PROGRESS = r"(\d{1,9})/(\d{1,9}) \["
"""tqdm's count of the requests that are answered."""
DECODE_LINE = (
    r"Decode batch(?: \[\d{1,9}\])?[.,] #running-req: (\d{1,6}), #token: (\d{1,9}), .{0,200}?"
    r"gen throughput \(token/s\): (\d{1,9}\.\d{1,6}), .{0,80}?#queue-req: (\d{1,6})"
)
"""The leader's line on decoding, in all versions: requests, the tokens they hold, tokens a second, waiting requests."""
READ_AT = {1: 482, 4: 1437, 32: 8923, 128: 86816}
"""Requests -> the tokens they held in the log lines from which the articles' decode table was read."""
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
    "total_tok_s": "total_throughput",
}
"""Figure -> its key in the result. Not every version has every key: 0.5.23 has no max_itl_ms."""
_LEFT_OUT = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "server_info")
"""Keys about single requests, and the engine's arguments, which may hold its API key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run as its client reports it.

    output_tokens: as asked for or counted by the engine; text_tokens: counted again in the texts, None if unknown
    texts, errors: of each answer, None where the client does not report them
    stand_in:      no real model answered, or not the engine's own client asked
    decode_tok_s:  from the moment when every request has its first token until the first request ends, where all were
                   sent at once; None where the client does not report that, or fewer tokens than requests lie there
    raw:           the result without what belongs to single requests, and without the engine's arguments
    """

    completed: int
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
    """Decoding as the leader's log shows it, while all requests of a run decode.

    tok_s:  of the line whose requests hold about as many tokens as in the articles' lines; tokens: how many they hold
    mean, least, most: tokens a second of all `lines`
    """

    tok_s: float
    tokens: int
    mean: float
    least: float
    most: float
    lines: int


def decoding(rows: Iterable[Sequence[float]], load: Load) -> DecodeLog | None:
    """From what DECODE_LINE found during a run. None where too few lines show all of its requests and none waiting:
    the first and the last such line count other steps too. For a load that is not in the articles, the line nearest to
    the middle of the answers counts."""
    whole = [row for row in _sound(rows) if row[0] == load.prompts and row[3] == 0][1:-1]
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
    """The most requests that the engine had at once by its log, if more than the run sends; else 0.

    One more may be the agent's own probe.
    """
    most = max((int(row[0] + row[3]) for row in _sound(rows)), default=0)
    return most if most > load.concurrency + 1 else 0


def _sound(rows: Iterable[Sequence[float]]) -> Iterator[Sequence[float]]:
    return (row for row in rows if len(row) == 4 and all(map(math.isfinite, row)))


def without_arguments(text: str) -> str:
    """A result file without the engine's arguments, which may hold its API key, and without lines that are not JSON."""
    kept = []
    for line in filter(str.strip, text.splitlines()):
        with suppress(ValueError, RecursionError):
            line_read = json.loads(line)
            if isinstance(line_read, dict):
                kept.append(json.dumps({key: value for key, value in line_read.items() if key != "server_info"}) + "\n")
    return "".join(kept)


def command(engine: Engine, load: Load, *, url: str, model: str, tokenizer: str) -> tuple[str, ...]:
    """The client's module and its arguments. model: its served name; tokenizer: its directory on the node.

    Raises InputError for an engine without one."""
    if "serving" not in engine.bench:
        raise InputError(
            f"`bench` can't measure {engine.product} {engine.version}: its own client takes other loads and reports"
            " other figures than the tables that `bench` compares with",
            where=f"dialect {engine.dialect}",
            fix="use the engine's own client (`vllm bench serve`) on the leader",
        )
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


def read(text: str) -> BenchResult:
    """The last line of a result file. Raises ValueError where that is not a result."""
    lines = [*filter(str.strip, text.splitlines())]
    if not lines:
        raise ValueError("the result file is empty")
    try:
        measured = json.loads(lines[-1])
        again = measured.get("total_output_tokens_retokenized")
        return BenchResult(
            figures=_figures(measured),
            completed=int(measured["completed"]),
            output_tokens=int(measured["total_output_tokens"]),
            text_tokens=None if again is None else int(again),
            texts=_texts(measured, "generated_texts"),
            errors=_texts(measured, "errors"),
            stand_in="stand_in" in measured or "stand_in" in (measured.get("server_info") or {}),
            decode_tok_s=_steady(measured),
            raw={key: value for key, value in measured.items() if key not in _LEFT_OUT},
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as wrong:
        raise ValueError(f"not a benchmark result: {type(wrong).__name__} {wrong}") from None


def _figures(measured: Mapping[str, Any]) -> dict[str, float]:
    """What the client measured, and what its version leaves to be calculated from that."""
    figures = {name: _finite(measured[key]) for name, key in _KEYS.items() if measured.get(key) is not None}
    if "total_tok_s" not in figures:
        figures["total_tok_s"] = _finite(measured["input_throughput"]) + _finite(measured["output_throughput"])
    if not {"duration_s", "output_tok_s"} <= figures.keys():
        raise ValueError("it has no duration or no throughput")
    if "max_itl_ms" not in measured and measured.get("itls"):
        figures["itl_max_ms"] = 1000 * max((_finite(gap) for gaps in measured["itls"] for gap in gaps), default=0.0)
    if (accept_length := accepted(measured)) is not None:
        figures["accept_length"] = accept_length
    return figures


def _message_times(firsts: Sequence[Any], gaps: Sequence[Sequence[Any]]) -> list[list[float]]:
    """When each message of each request came, in seconds since it was sent."""
    return [list(accumulate(map(_finite, [first, *rest]))) for first, rest in zip(firsts, gaps, strict=True)]


def _steady(measured: Mapping[str, Any]) -> float | None:
    """Tokens a second while every request decodes. A message holds as many tokens as its answer has for each: with
    speculative decoding more than one."""
    firsts, gaps = measured.get("ttfts"), measured.get("itls")
    if not isinstance(firsts, list) or not isinstance(gaps, list) or not firsts or len(firsts) != len(gaps):
        return None
    times = _message_times(firsts, gaps)
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    messages = [sum(begin < at <= end for at in each) for each in times]
    if end <= begin or sum(messages) < len(times):
        return None
    each_holds = _tokens_a_message(measured, gaps)
    return sum(count * tokens for count, tokens in zip(messages, each_holds, strict=True)) / (end - begin)


def _tokens_a_message(measured: Mapping[str, Any], gaps: Sequence[Sequence[Any]]) -> list[float]:
    """Of each answer after its first message, which holds the prompt's token alone; 1 where the client does not count
    an answer's tokens."""
    lengths = measured.get("output_lens")
    if not isinstance(lengths, list) or len(lengths) != len(gaps):
        return [1.0] * len(gaps)
    counted = zip(lengths, gaps, strict=True)
    return [max(1.0, (_finite(length) - 1) / len(rest)) if rest else 1.0 for length, rest in counted]


_DRAFTED = 1.05
"""Tokens a message above which more than chance joined them: a client may read two messages at once."""


def accepted(measured: Mapping[str, Any]) -> float | None:
    """Mean tokens that a step gave each request; None without speculative decoding, and where messages are not told."""
    gaps = measured.get("itls")
    if not isinstance(gaps, list) or not gaps or not all(isinstance(rest, list) for rest in gaps):
        return None
    messages = sum(len(rest) for rest in gaps)
    tokens = sum(each * len(rest) for each, rest in zip(_tokens_a_message(measured, gaps), gaps, strict=True))
    return tokens / messages if messages and tokens / messages >= _DRAFTED else None


def flaw(result: BenchResult, load: Load) -> str:
    """Why a run's figures mean nothing: failed or empty answers, missing tokens; '' where it is sound."""
    error = next((error for error in result.errors or () if error), "")
    if result.completed != load.prompts:
        return f"{result.completed} of {load.prompts} requests were answered" + (f": {error[:200]}" if error else "")
    if result.output_tokens != load.prompts * load.output:
        return f"{result.output_tokens} tokens were returned, {load.prompts * load.output} requested"
    if empty := sum(not text for text in result.texts or ()):
        return f"{empty} of {load.prompts} answers are empty"
    if result.text_tokens is not None and result.text_tokens < load.prompts:
        return f"the {load.prompts} answers contain only {result.text_tokens} tokens of text: some are empty"
    return ""


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"found {number} among its figures")
    return number


def _texts(measured: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    values = measured.get(key)
    return tuple(str(value or "") for value in values) if isinstance(values, list) else None
