"""Quick dataclasses behave like the library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from orchestrator import quick


@quick.dataclass(frozen=True, slots=True)
class Quick:
    a: int
    b: str = dataclasses.field(default="b", repr=False)
    c: tuple[int, ...] = dataclasses.field(default_factory=tuple)
    d: int | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    a: int
    b: str = dataclasses.field(default="b", repr=False)
    c: tuple[int, ...] = dataclasses.field(default_factory=tuple)
    d: int | None = dataclasses.field(default=None, kw_only=True)


@quick.dataclass(frozen=True, slots=True, kw_only=True)
class Wider(Quick):
    e: str = "e"


@pytest.mark.parametrize(
    ("values", "named"), [((1,), {}), ((1, "x", (2,)), {}), ((), {"a": 1, "d": 4}), ((1,), {"c": (3,), "b": "y"})]
)
def test_it_is_made_shown_compared_and_copied_as_the_librarys(values: Any, named: Any) -> None:
    ours, theirs = Quick(*values, **named), Plain(*values, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Plain", "Quick")
    assert hash(ours) == hash(theirs)
    assert ours == Quick(*values, **named) != Quick(99)
    assert ours != Wider(a=1)
    assert copy.deepcopy(ours) == copy.copy(ours) == pickle.loads(pickle.dumps(ours)) == ours
    assert dataclasses.replace(ours, a=7) == Quick(*(7, *values[1:]), **{k: v for k, v in named.items() if k != "a"})
    assert dataclasses.replace(Wider(a=1), e="f", b="g") == Wider(a=1, b="g", e="f")


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1,), {"a": 1}), ((1,), {"z": 1}), ((1, "b", (), 4), {})])
def test_what_the_library_refuses_is_refused(values: Any, named: Any) -> None:
    for kind in (Quick, Plain):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_it_is_frozen_and_has_no_dict() -> None:
    for name in ("a", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(Quick(1), name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(Quick(1), "a")
    assert not hasattr(Quick(1), "__dict__")
    match Wider(a=1, e="x"):
        case Quick(a=a) if a == 1:
            pass
        case _:
            pytest.fail("patterns name its fields")
