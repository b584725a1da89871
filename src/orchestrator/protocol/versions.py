"""Versions of packages, as nodes and controller compare them."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,7})")


def release(version: str) -> tuple[int, ...]:
    """(0, 5, 23) of 0.5.23.post1 and 0.5.23+cu130: what PEP 440 calls the release, without trailing zeros, which say
    nothing; () where there is none."""
    match = _RELEASE.match(version)
    numbers = [int(number) for number in match[1].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def is_newer(version: str, other: str) -> bool:
    """Whether its release is above the other one's; False where one of them has none."""
    numbers, others = release(version), release(other)
    return bool(numbers and others) and numbers > others
