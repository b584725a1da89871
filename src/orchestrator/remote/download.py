"""A file from the web, under one deadline and one byte limit."""

from __future__ import annotations

import http.client
import urllib.request

from orchestrator.remote.deadline import Deadline, DeadlinePassed


def downloaded(address: str, most: int, seconds: float) -> bytes:
    """Of an https address of ours, by the user's proxy, in this time however slowly it comes. Raises OSError."""

    def work() -> bytes:
        with urllib.request.urlopen(address, timeout=seconds) as answer:  # noqa: S310 - our own address
            return bytes(answer.read(most))

    try:
        return Deadline(seconds).of(work)
    except (DeadlinePassed, http.client.HTTPException) as wrong:
        passed = isinstance(wrong, DeadlinePassed)
        raise OSError("the time limit was reached" if passed else type(wrong).__name__) from None
