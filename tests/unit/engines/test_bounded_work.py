"""Every pattern that an agent searches a log with takes time proportional to the text, whoever wrote it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from orchestrator.engines import router
from orchestrator.engines.registry import dialects

if sys.version_info >= (3, 11):
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as sre
    import sre_parse as parser

KIB = 1024
PROBE = ("log", "counters", "pause", "resumed")
MOST = 2.5
"""Twice the text may take this many times as long."""
CLEARLY_S = 1e-8
"""A character. What is searched faster is not searched again from each of its places: that takes ten times as long
where the text has but some hundred such places."""
HOSTILE = [
    "ibv_poll_cq", "ibv_reg_mr", "ibv_reg_mr failed", "Got completion with status ", "/dev/shm", "shmget",
    "No such file or directory: ", "No such file or directory: '/a/config.", "Unrecognized model in ",
    "Loading safetensors checkpoint shards:|", "Loading safetensors checkpoint shards:|1/", "[ TP1", "[1]a",
    '"HTTP/1.1" 200 a', "INFO:   ", "a", "1", " ", "|",
]  # fmt: skip
"""Hand-written texts: those that made an agent miss its beats, and similar ones."""


def patterns() -> dict[str, str]:
    found: dict[str, str] = {}
    for family in dialects().values():
        for version in family.versions:
            found |= _of(version, family.engine(version).watch().as_json())
    found |= _of("router", router.WATCH.as_json())
    return {name: pattern for pattern, name in {pattern: name for name, pattern in found.items()}.items()}


def _of(name: str, watch: Any) -> dict[str, str]:
    named = {f"phase {entry['phase']}": entry["pattern"] for entry in watch["phases"]}
    named |= {f"cause {entry['id']}": entry["pattern"] for entry in watch["causes"]}
    named |= {f"remark {entry['id']}": entry["pattern"] for entry in watch.get("remarks", ())}
    named |= {f"proof {entry['id']}": entry["pattern"] for entry in watch.get("proofs", ())}
    named |= {key: watch[key] for key in ("rank_prefix", "rank_title", "requests", "harmless", "own") if watch.get(key)}
    named |= {f"title {title}": title for title in watch.get("other_titles", ())}
    named |= {f"probe {key}": watch["probe"][key] for key in PROBE if key in watch.get("probe", {})}
    return {f"{name}: {what}": pattern for what, pattern in named.items() if pattern}


def beginnings(tree: Any) -> Iterator[str]:
    """Texts that lead into a pattern: for each point of it, one that matches up to that point."""
    texts = [""]
    for operation, argument in tree:
        texts = [text + more for text in texts for more in _texts(operation, argument)][:40]
        yield from texts


def _texts(operation: Any, argument: Any) -> Sequence[str]:
    if operation is sre.LITERAL:
        return [chr(argument)]
    if operation is sre.NOT_LITERAL:
        return ["x"]
    if operation is sre.ANY:
        return ["x", "|"]
    if operation is sre.IN:
        return [_member(argument)]
    if operation is sre.BRANCH:
        return [text for branch in argument[1] for text in _whole(branch)]
    if operation is sre.SUBPATTERN:
        return _whole(argument[3])
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, inner = argument
        return [text * count for text in _whole(inner) for count in {least, min(most, least + 3)}]
    return [""]  # a place, not a character


def _whole(tree: Any) -> list[str]:
    return list(dict.fromkeys(list(beginnings(tree))[-12:])) or [""]


def _member(kinds: Any) -> str:
    matches = re.compile(_set(kinds)).match
    return next((character for character in "1aA _|-/xyz:=['\"\x1b" if matches(character)), "x")


def _set(kinds: Any) -> str:
    names = {sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_SPACE: r"\s", sre.CATEGORY_WORD: r"\w"}
    names |= {sre.CATEGORY_NOT_SPACE: r"\S", sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_NOT_WORD: r"\W"}
    text = ""
    for kind, value in kinds:
        if kind is sre.NEGATE:
            text += "^"
        elif kind is sre.LITERAL:
            text += re.escape(chr(value))
        elif kind is sre.RANGE:
            text += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        else:
            text += names[value]
    return f"[{text}]"


def adversaries(pattern: str) -> list[str]:
    """Texts whose repetition makes a search enter the pattern again and again."""
    own = [text for text in dict.fromkeys(beginnings(parser.parse(pattern))) if len(text) > 1]
    step = max(1, len(own) // 24)
    return [*islice(own, 0, None, step), *own[-2:], *HOSTILE]


def texts(seed: str, size: int) -> Iterator[str]:
    yield (seed * (size // len(seed) + 1))[:size]
    yield (seed + seed[-1] * size)[:size]


def seconds(pattern: re.Pattern[str], text: str, least_s: float = 0.002) -> float:
    """Seconds of one search: the best of several, of many if one is short."""
    began = time.process_time()
    pattern.search(text)
    times = max(1, int(least_s / max(time.process_time() - began, 1e-6)))
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            pattern.search(text)
        best = min(best, (time.process_time() - began) / times)
    return max(best, 1e-7)


def ratio(pattern: re.Pattern[str], short: str, long: str) -> float:
    """How many times as long the longer text takes; measured more carefully if it seems too much: each at its best,
    since any other load makes either one slower."""
    best_short, best_long = seconds(pattern, short, 0.0005), seconds(pattern, long, 0.0005)
    tries = 0
    while best_long > MOST * best_short and tries < 5:
        one_short, one_long = seconds(pattern, short), seconds(pattern, long)
        if one_long <= MOST * one_short:
            return one_long / one_short
        best_short, best_long = min(best_short, one_short), min(best_long, one_long)
        tries += 1
    return best_long / best_short


def clearly_bounded(pattern: re.Pattern[str], text: str) -> bool:
    """One search of it is so quick that it needs no second one."""
    began = time.process_time()
    pattern.search(text)
    return time.process_time() - began < CLEARLY_S * len(text)


@pytest.mark.turns(play=15)
@pytest.mark.parametrize("pattern", [pytest.param(pattern, id=name) for name, pattern in patterns().items()])
def test_twice_the_text_takes_twice_the_time(pattern: str) -> None:
    compiled = re.compile(pattern)
    for seed in adversaries(pattern):
        for short, long in zip(texts(seed, 32 * KIB), texts(seed, 64 * KIB), strict=True):
            assert clearly_bounded(compiled, long) or ratio(compiled, short, long) <= MOST, f"{seed[:80]!r}"


@pytest.mark.parametrize("pattern", ["ibv_poll_cq.*(failed|error)", r"a\w* failed", r"shards:.*\|\s*\d+/"])
def test_the_test_finds_patterns_that_are_not_bounded(pattern: str) -> None:
    compiled = re.compile(pattern)
    size = 4 * KIB
    assert any(
        not clearly_bounded(compiled, long) and ratio(compiled, short, long) > MOST
        for seed in adversaries(pattern)
        for short, long in zip(texts(seed, size), texts(seed, 2 * size), strict=True)
    )
