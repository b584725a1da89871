from __future__ import annotations

import pytest

from l40s_lab.faults.registry import find
from l40s_lab.node.living import _RANK


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


@pytest.mark.parametrize(
    ("name", "words", "done"),
    [
        ("kill-rank", ("5",), "the process of TP rank 5 gets KILL, as from the OOM killer"),
        ("kill-rank", ("5", "TERM"), "the process of TP rank 5 gets TERM"),
        ("slow-node", ("1gbit", "bond0"), "limits traffic into and out of bond0 to 1gbit"),
        ("mtu", ("ens5",), "the port ens5 gets an MTU of 1500; larger frames are lost"),
        ("delay", ("40",), "every frame to and from DEV (default: the TCP side) is delayed by 40 milliseconds"),
    ],
)  # fmt: skip
def test_what_was_done_is_told_with_the_words_that_were_given(name: str, words: tuple[str, ...], done: str) -> None:
    assert find(name).done(words) == done
