"""Names in sentences: neighbours as one span, the first ones of many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MOST_NAMES = 16


def spans(names: Iterable[str]) -> str:
    """Neighbouring numbers of one name are a span: 'GPU0 to GPU3'."""
    each = list(names)
    spans: list[tuple[str, str]] = []
    for name in each:
        if spans and _follows(spans[-1][1], name):
            spans[-1] = (spans[-1][0], name)
        else:
            spans.append((name, name))
    words = [word for span in spans for word in _span(*span)]
    more = len(words) - _MOST_NAMES
    return ", ".join(words[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _span(first: str, last: str) -> Sequence[str]:
    if first == last:
        return (first,)
    return (first, last) if _follows(first, last) else (f"{first} to {last}",)


def _follows(name: str, after: str) -> bool:
    """Whether the second name is the first with the next number at its end."""
    one, other = (re.fullmatch(r"(.{0,64}?)(\d{1,4})", text) for text in (name, after))
    return bool(one and other and one[1] == other[1] and int(other[2]) == int(one[2]) + 1)
