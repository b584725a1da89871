"""Engine versions in order, and which of them a profile's entry holds for."""

from __future__ import annotations

import re

NAMED_VERSIONS = r"all|\d+(\.\w+)*[.+]?"
"""What a profile may write: how its versions begin (`0.5`: 0.5.23; `0.3`: 0.32 and 0.33), the first of them (as
`0.5.23+`), or `all`."""


def order(version: str) -> tuple[int, ...]:
    """0.4.4.post1 as (0, 4, 4, 1): release, then post-release; what follows a `+` or `-` counts for nothing."""
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[+-]", version, maxsplit=1)[0])]
    return tuple((numbers + [0] * 4)[:4])


def holds_for(versions: str, version: str) -> bool:
    """Whether an entry of a profile is meant for an engine version. versions: as NAMED_VERSIONS, '' for all."""
    if versions.endswith("+"):
        return order(version) >= order(versions)
    return version.startswith(versions)
