"""Which words a text must have for a pattern to match it: a cheap look before an expensive search. Pure.

Lines that differ by their digits alone, decimal or hexadecimal, have one shape: what words they may have is looked up
once for all of them.

Reads Python's own parse of a pattern (CPython's `re._parser`, `sre_parse` before 3.11). Where that is missing, or a
part is of a kind that is not known here, nothing is required and the pattern is searched: slower, and as right.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

SHORTEST = 3
"""Characters; shorter words stand in nearly every line."""
MOST_WORDS = 24
"""Of one pattern; looking for more costs as much as the search."""

_ZEROED = bytes(ord("0") if chr(byte) in "0123456789abcdefABCDEF" else byte for byte in range(256))


def shapes_of(lines: Sequence[str]) -> list[str]:
    """The lines with each digit, a to f too, as 0. None of them has a line break."""
    return _zeroed("\n".join(lines)).split("\n") if lines else []


def words_in(words: Iterable[str], shapes: Collection[str]) -> set[str]:
    """Those words that a line of one of the shapes may have."""
    whole = "\n".join(shapes).encode("utf-8", "surrogatepass")  # `in` is twice as fast on bytes
    return {word for word in words if _zeroed(word).encode("utf-8", "surrogatepass") in whole}


def telling(words: Iterable[str], shapes: Collection[str]) -> set[str]:
    """Of shapes those of which a line may have one of the words."""
    there = {_zeroed(word) for word in words_in(words, shapes)}
    return {shape for shape in shapes if any(word in shape for word in there)}


def _zeroed(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").translate(_ZEROED).decode("utf-8", "surrogatepass")


@functools.lru_cache(maxsize=1024)
def required(pattern: str) -> tuple[str, ...]:
    """Words of which each text that the pattern matches has at least one; () where there are none, or too many."""
    parser = _parser()
    if parser is None or re.compile(pattern).flags & re.IGNORECASE:
        return ()
    words = _words_of(list(parser.parse(pattern)))
    return tuple(dict.fromkeys(words)) if words is not None and len(words) <= MOST_WORDS else ()


def may_match(words: Sequence[str], text: str) -> bool:
    """Whether a search in the text is worth it. words: of `required`, by the pattern"""
    return not words or any(word in text for word in words)


def _parser() -> Any:
    name = next((name for name in ("re._parser", "sre_parse") if _exists(name)), None)
    return importlib.import_module(name) if name else None


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # `re` is no package before 3.11
        return False


def _words_of(items: Sequence[tuple[Any, Any]]) -> list[str] | None:
    """Of parts that follow one another, the part that asks for the longest words; None where none asks for any."""
    candidates = [words for words in (*_runs(items), *map(_words_in, items)) if words]
    return max(candidates, key=lambda words: min(map(len, words)), default=None)


def _runs(items: Iterable[tuple[Any, Any]]) -> list[list[str]]:
    """Characters that follow one another directly."""
    runs = [""]
    for kind, value in items:
        if str(kind) == "LITERAL":
            runs[-1] += chr(value)
        else:
            runs.append("")
    return [[run] for run in runs if len(run) >= SHORTEST]


def _words_in(item: tuple[Any, Any]) -> list[str] | None:
    """Of one part that is no single character."""
    kind, value = str(item[0]), item[1]
    if kind == "SUBPATTERN":
        return _words_of(list(value[-1]))
    if kind == "BRANCH":
        return _either(value[1])
    if kind in ("MAX_REPEAT", "MIN_REPEAT") and value[0] > 0:
        return _words_of(list(value[2]))
    return None


def _either(branches: Iterable[Sequence[tuple[Any, Any]]]) -> list[str] | None:
    """Of alternatives: each must ask for something, since any of them may be the one that matches."""
    words: list[str] = []
    for branch in branches:
        of_branch = _words_of(list(branch))
        if of_branch is None:
            return None
        words += of_branch
    return words
