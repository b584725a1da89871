"""Which copy is the odd one when copies differ."""

from __future__ import annotations

import pytest

from orchestrator.checkpoint.copies import differences, repair_command, repairs


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ({"a": "1", "b": "1", "c": "2"}, "differs on c"),
        ({"a": "1", "b": "1", "c": None}, "missing on c"),
        ({"a": "1", "b": "2"}, "not the same: a 1; b 2"),
        ({"a": "1", "b": None}, "missing on b"),
        ({"a": "1", "b": "1", "c": "2", "d": "2"}, "not the same: a 1; b 1; c 2; d 2"),
        ({"a": "1", "b": "1", "c": "1", "d": None, "e": "3"}, "missing on d, differs on e"),
    ],
)
def test_the_odd_ones_are_named_where_most_agree(copies: dict[str, str | None], words: str) -> None:
    found = differences({node: {"f": digest} if digest else {} for node, digest in copies.items()})
    assert [one.words() for one in found] == [words]


def test_equal_copies_have_no_differences() -> None:
    assert differences({"a": {"f": "1"}, "b": {"f": "1"}}) == ()
    assert differences({"a": {"f": "1"}}) == ()


Copies = dict[str, dict[str, str]]
FROM = "l40s-deploy checkpoint push a:/models/M --node {} --repair"


@pytest.mark.parametrize(
    ("source", "name", "command"),
    [
        ("a:/models/M", "M", "l40s-deploy checkpoint push a:/models/M --node d --repair"),
        ("a:/models/M", "N", "l40s-deploy checkpoint push a:/models/M --node d --as N --repair"),
        ("./my model", "", "l40s-deploy checkpoint push './my model' --node d --repair"),
    ],
)
def test_the_command(source: str, name: str, command: str) -> None:
    assert repair_command(source, "d", name) == command


@pytest.mark.parametrize(
    ("copies", "wanted"),
    [
        ({"a": {"f": "1"}, "b": {"f": "1"}, "c": {"f": "2"}}, [FROM.format("c")]),
        ({"a": {"f": "1", "g": "1"}, "b": {"f": "2", "g": "1"}, "c": {"f": "1"}, "d": {"f": "1", "g": "1"}},
         [FROM.format("b"), FROM.format("c")]),
        ({"a": {"f": "1"}, "b": {}}, [FROM.format("b")]),
        ({"a": {"f": "1"}, "b": {"f": "1"}, "c": {"f": "1", "x": "1"}},
         ["remove x on c: the other nodes do not have it"]),
    ],
)  # fmt: skip
def test_each_odd_node_gets_its_command_from_a_good_one(copies: Copies, wanted: list[str]) -> None:
    directories = dict.fromkeys(copies, "/models/M")
    assert list(repairs(differences(copies), directories, list(copies))) == wanted


def test_without_a_majority_somebody_has_to_choose() -> None:
    copies = {"a": {"f": "1"}, "b": {"f": "2"}}
    (line,) = repairs(differences(copies), dict.fromkeys(copies, "/models/M"), list(copies))
    assert line.startswith("find the right copy")
    assert line.endswith(FROM.format("b"))


def test_copies_that_agree_need_nothing() -> None:
    assert not list(repairs((), {}, []))
