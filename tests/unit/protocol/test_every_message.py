"""Every message that is found in the code: written and read again, then with lies and bytes of any kind in it."""

from __future__ import annotations

import importlib
import json
import random
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.mutate import odd_json
from tests.support.turns import drawn

from orchestrator.protocol.message import Message, Unreadable, parsed, unknown_keys

SOURCE = Path(__file__).parents[3] / "src"
ODD_CASES = 150
DEEPEST = 3
"""Messages inside messages."""


def messages() -> list[type[Message]]:
    """Those of all modules that define some."""
    for file in sorted(SOURCE.rglob("*.py")):
        if "Message)" in file.read_text("utf-8"):
            importlib.import_module(".".join(file.relative_to(SOURCE).with_suffix("").parts))
    found = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _below(Message)}
    return [kind for name, kind in sorted(found.items()) if name.startswith("orchestrator.")]


def _below(kind: type[Message]) -> Iterator[type[Message]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _below(inner)


def sound(kind: type[Message], depth: int = 0) -> dict[str, Any]:
    """A message with something in every field, as JSON."""
    return {name: _value(hint, depth) for name, hint in typing.get_type_hints(kind).items()}


def _value(hint: Any, depth: int) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        (inner,) = (one for one in arguments if one is not types.NoneType)
        return None if depth >= DEEPEST else _value(inner, depth)
    if origin is tuple:
        return [] if depth >= DEEPEST else [_value(arguments[0], depth)]
    if origin is Mapping:
        return {} if depth >= DEEPEST else {"a": _value(arguments[1], depth)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint)).value
    if isinstance(hint, type) and issubclass(hint, Message):
        return sound(hint, depth + 1)
    return {str: "a", int: 3, float: 1.5, bool: True}.get(hint, {"a": [1]})


@pytest.mark.parametrize("kind", messages(), ids=lambda kind: kind.__qualname__)
def test_whatever_it_holds_is_a_value_or_said_to_be_unreadable(kind: type[Message]) -> None:
    raw = sound(kind)
    whole = kind.read(raw)
    assert isinstance(whole, kind), whole
    assert kind.read(json.loads(json.dumps(whole.as_json()))) == whole
    assert kind.read({**raw, "of a newer release": 1}) == whole
    assert "of a newer release" in unknown_keys(kind, {**raw, "of a newer release": 1})
    rng, text = random.Random(f"{drawn('messages')}/{kind.__qualname__}"), json.dumps(raw).encode()
    for _ in range(ODD_CASES):
        _odd(kind, odd_json(rng, text))


def _odd(kind: type[Message], text: bytes) -> None:
    try:
        value = parsed(text)
        told = value if isinstance(value, Unreadable) else kind.read(value)
        unknown_keys(kind, value)
        if isinstance(told, Message):
            written = json.dumps(told.as_json())
            again = kind.read(json.loads(written))
            assert isinstance(again, kind) and json.dumps(again.as_json()) == written
        else:
            assert isinstance(told, Unreadable) and str(told)
    except Exception as defect:
        raise AssertionError(f"{text[:300]!r}: {defect!r}") from defect
