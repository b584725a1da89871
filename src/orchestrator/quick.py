"""Frozen dataclasses whose methods are shared, where `dataclasses` compiles five functions for each class.

A command imports a hundred of them before it says a word, and so does every verb on every node: with compiled methods
that is a quarter of what `status` costs its client. Making an object takes microseconds longer: this is not for what is
made by the thousand.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool = False, kw_only: bool = False):
        """As in `dataclasses`, for classes that are frozen."""
        assert frozen

        def made(cls: type) -> type:
            bare = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)
            bare.__quick__ = dataclasses.fields(bare)
            for name in _SHARED:
                if name not in cls.__dict__:
                    setattr(bare, name, getattr(_Shared, name))
            return bare

        return made


_put = object.__setattr__


class _Shared:
    """The methods, by the fields of the class that has them."""

    __quick__: tuple[dataclasses.Field[Any], ...]

    def __init__(self, *values: Any, **named: Any) -> None:
        fields, what = type(self).__quick__, type(self).__name__
        order = [field.name for field in fields if not field.kw_only] if values else []
        if len(values) > len(order) or named.keys() & order[: len(values)]:
            raise TypeError(f"{what} takes the positional values ({', '.join(order)}), each once")
        named.update(zip(order, values, strict=False))
        for field in fields:
            if field.name in named:
                _put(self, field.name, named.pop(field.name))
            elif field.default is not dataclasses.MISSING:
                _put(self, field.name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                _put(self, field.name, field.default_factory())
            else:
                raise TypeError(f"{what} lacks a value: {field.name}")
        if named:
            raise TypeError(f"{what} has no such field: {', '.join(named)}")

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in type(self).__quick__ if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> tuple[Any, ...]:
        return _values(self)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for field, value in zip(type(self).__quick__, state, strict=True):
            _put(self, field.name, value)


_SHARED = (
    "__init__", "__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__", "__getstate__", "__setstate__",
)  # fmt: skip


def _values(of: Any) -> tuple[Any, ...]:
    return tuple(getattr(of, field.name) for field in type(of).__quick__)
