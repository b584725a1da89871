"""More clients than the real engine runs at once, one prompt nearly as long as the model allows among them, and clients
that do not read: everybody is answered, with the right text; how long they wait is printed."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import cycle, islice
from urllib.parse import urlsplit

import pytest
from tests.support.load import answered
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import slack, until

from l40s_lab.engine.model import LETTERS

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(2400)]

TOKENS = 24
CLIENTS = {"no room beside them": 128, "room beside them": 48}
LONG = 1900
"""Tokens of the long prompt, of 2,048 that the model takes and 4,096 of the KV cache; a byte is a token."""
CONTEXT = 2048
DEAF = 8
PATIENCE_S = 300.0


@dataclass
class Stream:
    """One client's answer as it came. at: when each piece came, in monotonic seconds"""

    prompt: str
    began: float = 0.0
    text: str = ""
    at: list[float] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """The alphabet goes on, whatever stands before its letters."""
        following = LETTERS.index(self.prompt[-1]) + 1
        return self.text == "".join(islice(cycle(LETTERS), following, following + TOKENS))

    def longest_pause(self, begin: float, end: float) -> float:
        """Between two pieces, as far as it fell into that time."""
        pairs = zip(self.at, self.at[1:], strict=False)
        return max((min(after, end) - max(before, begin) for before, after in pairs), default=0.0)


def body(lab: SmallLab, prompt: str, tokens: int = TOKENS) -> dict[str, object]:
    wanted = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"model": lab.model, "prompt": prompt, "stream": True, **wanted}


def streamed(lab: SmallLab, url: str, stream: Stream) -> None:
    stream.began = time.monotonic()
    with answered(f"{url}/v1/completions", body(lab, stream.prompt), PATIENCE_S * slack()) as answer:
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: {") and (text := json.loads(line[6:])["choices"][0]["text"]):
                stream.at.append(time.monotonic())
                stream.text += text


def short_ones(count: int) -> list[Stream]:
    return [Stream(f"number {number:03d} {LETTERS[number % 20 : number % 20 + 6]}") for number in range(count)]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab(f"long-{os.getpid()}", engine="sglang", nodes=1) as made:
        made.serve()
        yield made


def all_at_once(lab: SmallLab, url: str, streams: Sequence[Stream], late: Stream | None = None) -> None:
    """All of them; the late one once a quarter of the others has begun to be answered."""
    with ThreadPoolExecutor(len(streams) + 1) as clients:
        running = [clients.submit(streamed, lab, url, stream) for stream in streams]
        if late is not None:
            until(lambda: sum(bool(stream.at) for stream in streams) >= len(streams) // 4, PATIENCE_S, "answers begin")
            running.append(clients.submit(streamed, lab, url, late))
        for each in running:
            each.result()


@pytest.mark.parametrize("count", CLIENTS.values(), ids=CLIENTS)
def test_a_long_prompt_among_short_ones_changes_nothing(lab: SmallLab, count: int) -> None:
    url = lab.gang()["service"]["url"]
    shorts, late = short_ones(count), Stream("x " * ((LONG - 6) // 2) + "abcdef")
    all_at_once(lab, url, shorts, late)
    assert [stream.prompt for stream in (*shorts, late) if not stream.right] == []
    first = late.at[0]
    pauses = sorted(stream.longest_pause(late.began, first) for stream in shorts)
    print(f"first token of {LONG} after {first - late.began:.2f} s; short ones stood still up to {pauses[-1]:.2f} s")
    with answered(f"{url}/v1/completions", body(lab, "x" * (CONTEXT + 1)), PATIENCE_S) as answer:
        assert answer.status == 400 and "context length" in answer.read().decode()


def test_clients_that_do_not_read_hold_nobody_up(lab: SmallLab) -> None:
    url = lab.gang()["service"]["url"]
    with ExitStack() as held:
        for number in range(DEAF):
            connection = http.client.HTTPConnection(str(urlsplit(url).netloc), timeout=PATIENCE_S)
            held.enter_context(closing(connection))
            connection.request("POST", "/v1/completions", json.dumps(body(lab, f"deaf {number} abc", 200)))
        shorts = short_ones(max(CLIENTS.values()))
        all_at_once(lab, url, shorts)
    assert [stream.prompt for stream in shorts if not stream.right] == []
