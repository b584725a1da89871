"""The rows of the chaos table that CI plays; `make chaos` plays all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.chaos.chaos import Row, document, play, table

if TYPE_CHECKING:
    from tests.support.small_lab import SmallLab


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    from tests.support.small_lab import small_lab

    with small_lab("chaos-ci", nodes=2) as made:
        yield made


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="gangs of emulated nodes with their own GPUs need root")
@pytest.mark.parametrize("row", [row for row in table() if row.ci], ids=lambda row: row.id)
def test_it_ends_as_the_table_says(lab: SmallLab, row: Row) -> None:
    assert play(lab, row) == ""


def test_every_row_has_a_name_of_its_own_and_the_report_shows_what_went_wrong() -> None:
    rows = table()
    assert len({row.id for row in rows}) == len(rows) > 30
    text = document([(rows[0], "", 1.0), (rows[1], "left | behind", 2.0)])
    assert "1 of 2" in text and "**left / behind**" in text
