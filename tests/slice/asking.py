"""N streamed requests at once, and what a client sees of them.

`python -m tests.slice.asking URL REQUESTS INPUT OUTPUT VOCABULARY` prints one line of JSON. A process of its own, so
that nothing beside it delays its clock. Prompts are random tokens that no other run had, so none is in a prefix cache.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean, median
from typing import Any
from urllib.parse import urlsplit

from tests.slice.model import FIRST_WORD

_DEADLINE_S = 420.0
_LINE = 1 << 24


@dataclass
class Answer:
    """One request. sent, at: of the monotonic clock; at: of each message; bad: why there is no answer"""

    sent: float
    at: list[float] = field(default_factory=list)
    tokens: int = 0
    bad: str = ""


async def ask(url: str, tokens: Sequence[int], output: int) -> Answer:
    """One request to SGLang's own /generate, by a connection of its own."""
    sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    body = json.dumps({"input_ids": list(tokens), "sampling_params": sampling, "stream": True}).encode()
    place = urlsplit(url)
    answer = Answer(time.monotonic())
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_LINE)
        head = f"POST /generate HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await reader.readline()
        last = await _messages(reader, answer)
        writer.close()
        if b" 200 " not in status or not answer.at:
            answer.bad = (status + last)[:300].decode("utf-8", "replace")
        else:
            answer.tokens = json.loads(last[5:])["meta_info"]["completion_tokens"]
    except (OSError, ValueError, KeyError) as error:
        answer.bad = f"{type(error).__name__}: {error}"[:300]
    return answer


async def _messages(reader: asyncio.StreamReader, answer: Answer) -> bytes:
    """The last one; a server-sent event is one chunk, so a line is never divided."""
    last = b""
    while line := await reader.readline():
        if line.startswith(b"data:") and b"[DONE]" not in line:
            answer.at.append(time.monotonic())
            last = line
        elif not answer.at:
            last += line
    return last


async def together(url: str, requests: int, size: int, output: int, vocabulary: int) -> dict[str, Any]:
    """All of them at once."""
    source = random.SystemRandom()
    prompts = [[source.randrange(FIRST_WORD, vocabulary) for _ in range(size)] for _ in range(requests)]
    began = time.monotonic()
    asked = asyncio.gather(*(ask(url, prompt, output) for prompt in prompts))
    answers = await asyncio.wait_for(asked, _DEADLINE_S)
    return summary(answers, time.monotonic() - began)


def summary(answers: Sequence[Answer], wall_s: float) -> dict[str, Any]:
    """Of requests that were sent together.

    decode_tok_s: while all of them were answered, which is from the last first token to the first end
    """
    good = [answer for answer in answers if not answer.bad]
    figures: dict[str, Any] = {"requests": len(answers), "failed": len(answers) - len(good), "wall_s": round(wall_s, 2)}
    if not good:
        return {**figures, "why": sorted({answer.bad for answer in answers})[:3]}
    tokens = sum(answer.tokens for answer in good)
    first = [answer.at[0] - answer.sent for answer in good]
    gaps = sorted(after - before for answer in good for before, after in pairwise(answer.at))
    figures |= {
        "tokens": tokens,
        "out_tok_s": round(tokens / wall_s, 1),
        "ttft_mean_ms": round(1e3 * mean(first), 1),
        "ttft_max_ms": round(1e3 * max(first), 1),
    }
    if gaps:
        figures |= {"itl_median_ms": round(1e3 * median(gaps), 2)}
        figures |= {"itl_p99_ms": round(1e3 * gaps[int(0.99 * (len(gaps) - 1))], 2)}
    start, end = max(answer.at[0] for answer in good), min(answer.at[-1] for answer in good)
    if end > start:
        inside = sum(start < moment <= end for answer in good for moment in answer.at)
        a_message = tokens / sum(len(answer.at) for answer in good)
        figures |= {"decode_tok_s": round(inside * a_message / (end - start), 1), "decode_s": round(end - start, 2)}
    return figures


if __name__ == "__main__":
    _, address, *numbers = sys.argv
    print(json.dumps(asyncio.run(together(address, *map(int, numbers)))))
