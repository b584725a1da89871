from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.gang import Cluster


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes a gang of real agents on loopback; ends all its processes afterwards."""
    made: list[Cluster] = []

    def make(**words: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"gang{len(made)}", **words))
        return made[-1]

    yield make
    for one in made:
        one.close()
