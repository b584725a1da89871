"""Messages check themselves when read: missing, unknown, extra fields, and wrong types."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.message import DEEPEST, Message, Unreadable, parsed, schema, unknown_keys


class Colour(str, Enum):
    RED = "red"


@schema(frozen=True, slots=True, kw_only=True)
class Inner(Message):
    name: str
    at: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class Outer(Message):
    number: int
    truth: bool = False
    colour: Colour = Colour.RED
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    table: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whatever: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """What a dataclass makes of the same fields."""

    name: str
    secret: str = field(default="", repr=False)
    more: Mapping[str, int] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class Secretive(Message):
    name: str
    secret: str = field(default="", repr=False)
    more: Mapping[str, int] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class Longer(Secretive):
    name: str = "Longer"
    last: int = 0


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_message_comes_back_as_it_was_written() -> None:
    message = Outer(
        number=1, truth=True, inner=Inner(name="n", at=2.5), many=(Inner(name="m"),), table={"a": (1, 2)}, whatever=[1]
    )
    assert Outer.read(json.loads(json.dumps(message.as_json()))) == message


def test_a_message_behaves_as_a_dataclass_does() -> None:
    twin, message = Twin(name="a", secret="hidden"), Secretive(name="a", secret="hidden")
    assert repr(message) == repr(twin).replace("Twin", "Secretive") and "hidden" not in repr(message)
    assert message == Secretive(name="a", secret="hidden") == copy.deepcopy(message) != Secretive(name="a")
    assert message != Longer(name="a", secret="hidden") and message != twin
    assert replace(message, name="b", more={"c": 1}) == Secretive(name="b", secret="hidden", more={"c": 1})
    assert Secretive(name="a").more is not Secretive(name="a").more
    assert {Inner(name="n"): 1}[Inner(name="n")] == 1
    assert Longer(last=2).as_json() == {"name": "Longer", "secret": "", "more": {}, "last": 2}
    kinds: tuple[Any, ...] = (Twin, Secretive)
    for wrong in kinds:
        with pytest.raises(TypeError):
            hash(wrong(name="a"))
        with pytest.raises(TypeError, match="name"):
            wrong()
        with pytest.raises(TypeError, match="colour"):
            wrong(name="a", colour="red")
        with pytest.raises(TypeError, match="argument"):
            wrong("a")
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
            wrong(name="a").name = "b"
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
            del wrong(name="a").name


def test_unknown_keys_are_passed_over_and_missing_ones_take_their_default() -> None:
    raw = {"number": 1, "colour_of_tomorrow": 2, "many": [{"name": "a", "size": 3}], "inner": None}
    assert Outer.read(raw) == Outer(number=1, many=(Inner(name="a"),))
    assert unknown_keys(Outer, raw) == ("colour_of_tomorrow", "many.size")


@pytest.mark.parametrize(
    ("raw", "where", "word"),
    [
        ([], "Outer", "is a list; an object is wanted"),
        (None, "Outer", "is null; an object is wanted"),
        ({}, "Outer", "has no key 'number'"),
        ({"number": "1"}, "Outer.number", 'is "1"; a whole number is wanted'),
        ({"number": True}, "Outer.number", "is true; a whole number is wanted"),
        ({"number": 1.0}, "Outer.number", "is 1.0; a whole number is wanted"),
        ({"number": 10**30}, "Outer.number", "is a number beyond 64 bits"),
        ({"number": 1, "truth": 1}, "Outer.truth", "is 1; true or false is wanted"),
        ({"number": 1, "truth": None}, "Outer.truth", "is null; true or false is wanted"),
        ({"number": 1, "colour": "blue"}, "Outer.colour", 'is "blue"; one of red is wanted'),
        ({"number": 1, "colour": ["red"]}, "Outer.colour", "is a list; one of red is wanted"),
        ({"number": 1, "inner": {"name": "a", "at": "soon"}}, "Outer.inner.at", 'is "soon"; a number is wanted'),
        ({"number": 1, "inner": {"name": "a", "at": float("nan")}}, "Outer.inner.at", "is nan; a finite number"),
        ({"number": 1, "inner": {"name": "a", "at": float("inf")}}, "Outer.inner.at", "is inf; a finite number"),
        ({"number": 1, "inner": {"name": "a", "at": 1e300}}, "Outer.inner.at", "is a number beyond all times"),
        ({"number": 1, "inner": {"name": "a", "at": 10**400}}, "Outer.inner.at", "is a number beyond all times"),
        ({"number": 1, "many": "ab"}, "Outer.many", 'is "ab"; a list is wanted'),
        ({"number": 1, "many": [{"name": "a"}, 5]}, "Outer.many.1", "is 5; an object is wanted"),
        ({"number": 1, "table": {"a": [1, None]}}, "Outer.table.a.1", "is null; a whole number is wanted"),
        ({"number": 1, "whatever": deep(DEEPEST)}, "Outer.whatever", "is nested too deeply"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_its_place(raw: object, where: str, word: str) -> None:
    found = Outer.read(raw)
    assert isinstance(found, Unreadable)
    assert found.where == where
    assert word in found.what


@pytest.mark.parametrize("text", ["[[]" + ",[]" * 1_000_000 + "]", "[0" + ",0" * 2_000_001 + "]"])
def test_a_text_of_countless_values_is_refused_before_it_takes_our_memory(text: str) -> None:
    assert isinstance(parsed(text), Unreadable)
    assert isinstance(parsed(text.encode()), Unreadable)


def test_text_that_is_no_json_is_a_value_too() -> None:
    for text in (b"", b"{", b"[" * 200_000, b"9" * 10_000, b"\xff\xfe\xfd", '{"a": \ud800}'):
        assert isinstance(parsed(text), Unreadable)
    assert parsed(b'{"a": 1}') == {"a": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["number", "inner", "name"]), inner),
)


@given(JSON)
def test_nothing_that_json_can_hold_raises(raw: Any) -> None:
    found = Outer.read(raw)
    assert isinstance(found, Unreadable) or Outer.read(found.as_json()) == found
    unknown_keys(Outer, raw)
