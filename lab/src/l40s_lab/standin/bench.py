"""`python3 -m standin.bench`: stands in for SGLang's serving benchmark (bench_serving) on an emulated node.

It takes the same arguments and writes the same keys. Requests and times are real, but the engine has no model: the
screen and the result (`stand_in`) say so.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .answers import NOTICE

_TIMEOUT_S = 600.0
_REPEATED = (
    "backend", "dataset_name", "request_rate", "max_concurrency", "random_input_len", "random_output_len",
    "random_range_ratio",
)  # fmt: skip
"""Arguments that are copied to the result."""


@dataclass
class Answer:
    """One request's outcome. first, last: arrival of its first and last piece of text, in seconds since it was sent;
    gaps: seconds between pieces"""

    text: str = ""
    error: str = ""
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)


def main(argv: Sequence[str]) -> int:
    """Do one run and append its result to the output file. Returns the exit status."""
    asked = _arguments().parse_args(argv)
    sys.stdout.write(f"{NOTICE.strip()}: this is l40s-deploy's stand-in of the benchmark client\n")
    prompts = _prompts(asked.dataset_path, asked.num_prompts, asked.random_input_len)
    for _ in range(asked.warmup_requests):
        warm = _ask(asked, prompts[0])
        if warm.error:
            sys.stderr.write(f"Warmup failed - Please make sure benchmark arguments are correct: {warm.error}\n")
            return 1
    began = time.perf_counter()
    answers = _all(asked, prompts)
    result = _result(asked, prompts, answers, time.perf_counter() - began)
    with Path(asked.output_file).open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="standin.bench", allow_abbrev=False)
    parser.add_argument("--backend", choices=["sglang-oai"], required=True)
    for name in ("--host", "--model", "--tokenizer", "--dataset-path", "--output-file"):
        parser.add_argument(name, required=True)
    parser.add_argument("--dataset-name", choices=["random"], required=True)
    for name in ("--port", "--random-input-len", "--random-output-len", "--num-prompts", "--max-concurrency"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--random-range-ratio", type=float, default=0.0)
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--warmup-requests", type=int, default=1)
    parser.add_argument("--ready-check-timeout-sec", type=int, default=0)
    for name in ("--flush-cache", "--output-details"):
        parser.add_argument(name, action="store_true")
    return parser


def _prompts(path: str, count: int, words: int) -> list[str]:
    """A word is a token here."""
    with Path(path).open(encoding="utf-8") as file:
        texts = [entry["conversations"][0]["value"].split() for entry in json.load(file)]
    return [" ".join((texts[place] * (words // len(texts[place]) + 1))[:words]) for place in range(count)]


def _all(asked: argparse.Namespace, prompts: list[str]) -> list[Answer]:
    answers = [Answer() for _ in prompts]
    free, lock, done = threading.Semaphore(asked.max_concurrency), threading.Lock(), [0]
    began = time.perf_counter()

    def one(place: int) -> None:
        with free:
            answers[place] = _ask(asked, prompts[place])
        with lock:
            done[0] += 1
            seconds = time.perf_counter() - began
            sys.stderr.write(f"\r{100 * done[0] // len(prompts):3d}%|  | {done[0]}/{len(prompts)} [{seconds:.1f}s]")
            sys.stderr.flush()

    threads = []
    for place in range(len(prompts)):
        threads.append(threading.Thread(target=one, args=(place,), daemon=True))
        threads[-1].start()
        time.sleep(1 / asked.request_rate)
    for thread in threads:
        thread.join()
    return answers


def _ask(asked: argparse.Namespace, prompt: str) -> Answer:
    answer = Answer()
    body = {
        "model": asked.model,
        "prompt": prompt,
        "max_tokens": asked.random_output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection(asked.host, asked.port, timeout=_TIMEOUT_S)
    began = time.perf_counter()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        told = connection.getresponse()
        if told.status != http.HTTPStatus.OK:
            answer.error = f"{told.reason}: {told.read(500).decode('utf-8', 'replace')}"
            return answer
        _read(told, answer, began)
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return answer


def _read(lines: Iterable[bytes], answer: Answer, began: float) -> None:
    for line in lines:
        said = line.strip().removeprefix(b"data: ")
        if not said or said == b"[DONE]":
            continue
        piece = json.loads(said)["choices"][0]["text"]
        if piece:
            now = time.perf_counter() - began
            if answer.tokens:
                answer.gaps.append(now - answer.last)
            else:
                answer.first = now
            answer.text, answer.tokens, answer.last = answer.text + piece, answer.tokens + 1, now


def _result(asked: argparse.Namespace, prompts: list[str], answers: list[Answer], duration: float) -> dict[str, Any]:
    good = [answer for answer in answers if not answer.error]
    ends = [answer.last for answer in good]
    read, written = asked.random_input_len * len(good), asked.random_output_len * len(good)
    return {
        "stand_in": NOTICE.strip(),
        **{name: getattr(asked, name) for name in _REPEATED},
        "duration": duration,
        "completed": len(good),
        "total_input_tokens": read,
        "total_output_tokens": written,
        "total_output_tokens_retokenized": sum(answer.tokens for answer in good),
        "request_throughput": len(good) / duration,
        "input_throughput": read / duration,
        "output_throughput": written / duration,
        "total_throughput": (read + written) / duration,
        **_spread("e2e_latency", ends),
        **_spread("ttft", [answer.first for answer in good]),
        **_spread("itl", [gap for answer in good for gap in answer.gaps]),
        "concurrency": sum(ends) / duration,
        "accept_length": None,
        **(_details(prompts, answers) if asked.output_details else {}),
    }


def _details(prompts: list[str], answers: list[Answer]) -> dict[str, list[Any]]:
    """Of each request, including failed ones."""
    return {
        "input_lens": [len(prompt.split()) for prompt in prompts],
        "output_lens": [answer.tokens for answer in answers],
        "ttfts": [answer.first for answer in answers],
        "itls": [answer.gaps for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, median and percentiles in milliseconds. values: seconds"""
    ranked = sorted(value * 1000 for value in values) or [0.0]
    parts = {f"p{share}_{name}_ms": ranked[min(len(ranked) - 1, len(ranked) * share // 100)] for share in (90, 95, 99)}
    mean, median = statistics.fmean(ranked), statistics.median(ranked)
    return {f"mean_{name}_ms": mean, f"median_{name}_ms": median, **parts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
