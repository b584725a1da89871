from __future__ import annotations

import pytest

from orchestrator.lab.node.living import _RANK


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        (b"sglang::scheduler_TP3\0", 3),
        (b"sglang::scheduler_DP1_TP12", 12),
        (b"sglang::scheduler_PP1_TP0\0\0", 0),
        (b"sglang::scheduler\0", 0),
        (b"sglang::scheduler", 0),
    ],
)
def test_a_ranks_title_says_its_number_and_nothing_where_there_is_one_rank(title: bytes, rank: int) -> None:
    found = _RANK.match(title)
    assert found is not None and int(found[1] or 0) == rank


@pytest.mark.parametrize(
    "title", [b"sglang::detokenizer\0", b"sglang::scheduler_TPx", b"sglang::schedulers\0", b"python\0"]
)
def test_other_titles_are_no_ranks(title: bytes) -> None:
    assert _RANK.match(title) is None
