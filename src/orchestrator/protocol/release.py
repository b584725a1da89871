"""Which of two releases is older: the controller's, or the one that wrote a message."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}")


def is_newer(theirs: str, ours: str) -> bool:
    """Whether a version is above another one, by their numbers; False where one of them has none."""
    found = [_NUMBERS.match(version) for version in (theirs, ours)]
    if None in found:
        return False
    numbers = [[int(number) for number in match.group().split(".")] for match in found if match]
    width = max(map(len, numbers))
    padded = [number + [0] * (width - len(number)) for number in numbers]
    return padded[0] > padded[1]


def side(theirs: str, ours: str) -> str:
    """The other side's release compared with ours: `l40s-deploy 0.3.0, newer than this one (0.2.0)`."""
    if is_newer(theirs, ours):
        return f"l40s-deploy {theirs[:40]}, newer than this one ({ours})"
    if is_newer(ours, theirs):
        return f"l40s-deploy {theirs[:40]}, older than this one ({ours})"
    return f"of another release than this one ({ours})"
