"""Clients that send requests without retries and count the results."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
WRONG = "another answer than was wanted"


def complete(url: str, model: str, prompt: str, tokens: int) -> str:
    """The text of one completion, at temperature 0."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    with answered(f"{url}/v1/completions", body) as answer:
        return str(json.load(answer)["choices"][0]["text"])


@contextmanager
def answered(url: str, body: dict[str, Any], patience: float = TIMEOUT_S) -> Iterator[http.client.HTTPResponse]:
    """What a server answers to one POST, whatever its status. Raises OSError, HTTPException."""
    place = urlsplit(url)
    link = http.client.HTTPConnection(place.hostname or "", place.port, timeout=patience)
    with closing(link):
        link.request("POST", place.path, json.dumps(body), {"Content-Type": "application/json"})
        yield link.getresponse()


class Stream(threading.Thread):
    """One streamed answer in the background. patience: time limit of each wait for it, in seconds."""

    def __init__(self, url: str, body: dict[str, Any], patience: float = TIMEOUT_S) -> None:
        super().__init__(daemon=True)
        self._url, self._body, self._patience = url, body, patience
        self._begun = threading.Event()
        self._ended = ""
        self._gone = False
        self.start()

    @classmethod
    def of(cls, url: str, model: str, tokens: int) -> Stream:
        """A completion of exactly so many tokens."""
        body = {"model": model, "prompt": "abcdef", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return cls(f"{url}/v1/completions", body | {"stream": True})

    def run(self) -> None:
        received = b""
        try:
            with answered(self._url, self._body, self._patience) as answer:
                while not self._gone and (more := answer.read1(4096)):
                    received += more
                    self._begun.set()
            self._ended = f"{answer.status}, whole" if b"[DONE]" in received else "cut"
        except TimeoutError:
            self._ended = "no answer"
        except (OSError, http.client.HTTPException):
            self._ended = "cut"
        finally:
            self._begun.set()

    def under_way(self) -> Stream:
        """Wait for its first token."""
        assert self._begun.wait(self._patience), "a generation's first token"
        return self

    def abandon(self) -> None:
        """Disconnect abruptly, at the next token."""
        self._gone = True
        self.join(self._patience)

    def ended(self) -> str:
        """`200, whole`, `cut` or `no answer`."""
        self.join(self._patience)
        return self._ended or "no answer"


@dataclass
class Load:
    """`clients` threads, each sending one request after another, every second one as a stream. A context manager.

    wants: text that every answer has
    """

    url: str
    model: str
    clients: int = 8
    tokens: int = 8
    pause_s: float = 0.0
    wants: str = ""
    good: int = 0
    bad: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    failed_at: float = 0.0
    """When the first request failed, in monotonic seconds."""
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._live, args=(number,)) for number in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _live(self, number: int) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            began = time.monotonic()
            trouble = self._ask(f"client {number} asks for the {count}th time", stream=count % 2 == 0)
            with self._lock:
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                if trouble:
                    self.failed_at = self.failed_at or time.monotonic()
                    self.bad.append(f"{time.strftime('%H:%M:%S')} {trouble}")
                else:
                    self.good += 1
            self._over.wait(self.pause_s)

    def _ask(self, prompt: str, *, stream: bool) -> str:
        """'' if the answer was complete."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": self.tokens, "stream": stream}
        try:
            with answered(f"{self.url}/v1/completions", body) as answer:
                text = answer.read()
            whole = b"[DONE]" in text if stream else bool(json.loads(text).get("choices"))
            if whole and self.wants.encode() not in text:
                return f"{WRONG}: {text[-800:]!r}"
            return "" if answer.status == 200 and whole else f"HTTP {answer.status}: {text[:200]!r}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
