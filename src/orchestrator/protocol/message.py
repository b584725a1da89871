"""Messages as frozen dataclasses that read themselves out of JSON and write themselves into it.

The fields are the schema: an unknown key is ignored, a missing one takes its default, and a value of another type makes
the message unreadable, which is a value, not an exception. So different releases of agent and controller communicate.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.protocol.versions import is_newer

__all__ = ["schema"]

MOST_SECONDS = 1e11
"""All numbers with a fraction are seconds here, of an epoch or of a duration; this is the year 5138."""
MOST_INTEGER = (1 << 63) - 1
DEEPEST = 16
"""For a value whose contents do not matter here."""
LONGEST_SHOWN = 60

M = TypeVar("M", bound="Message")
Reader = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is wrong with a message. where: the key, as in `report.phase.since`; what: found and wanted."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


class _Wrong(Exception):
    """Raised inside a reader; `read` turns it into a value."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path: list[str] = []


class Message:
    """Base of every message: a frozen dataclass whose fields are str, int, float, bool, an Enum, another message, a
    tuple or a mapping of these, `X | None`, or Any. `schema` makes it one."""

    __slots__ = ()

    def __setattr__(self, name: str, _value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return isinstance(other, Message) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields if field.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __getstate__(self) -> list[Any]:
        return [*self._values()]

    def __setstate__(self, state: Sequence[Any]) -> None:
        for name, value in zip(_names(type(self)), state, strict=True):
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in _names(type(self))])

    @classmethod
    def read(cls: type[M], raw: object) -> M | Unreadable:
        """The message that parsed JSON holds; raises nothing, whatever it is given."""
        try:
            message: M = _reader(cls)(raw)
        except _Wrong as wrong:
            return Unreadable(".".join([cls.__name__, *reversed(wrong.path)]), str(wrong))
        except RecursionError:
            return Unreadable(cls.__name__, "is nested too deeply")
        return message

    def as_json(self) -> dict[str, Any]:
        """Every field, ready for `json.dumps`; `read` gives an equal message back."""
        document = {}
        for name in _names(type(self)):
            value = getattr(self, name)
            document[name] = value if type(value) in _UNCHANGED else _plain(value)
        return document


def _schema(*, frozen: bool, slots: bool, kw_only: bool) -> Callable[[type[M]], type[M]]:
    """`dataclass` for messages. A dataclass compiles six functions, a third of a millisecond, for every class; a node
    loads a hundred classes at each of thousands of starts, and uses some. Here each has the base's functions, and
    `__init__` is made when the first message is."""
    assert frozen and slots and kw_only

    def made(bare: type[M]) -> type[M]:
        kind = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(bare)

        def first(self: M, **values: Any) -> None:
            kind.__init__ = _initialiser(kind)  # type: ignore[method-assign]
            kind.__init__(self, **values)

        kind.__init__ = first  # type: ignore[assignment, method-assign]
        return kind

    return made


_MADE = object()
"""Stands for a default that is made anew for each message."""


def _initialiser(kind: type[Message]) -> Callable[..., None]:
    """Compiled, as a dataclass's is: simulations and large clusters make millions of messages."""
    names: dict[str, Any] = {"_made": _MADE}
    parameters, lines = [], []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.name
        names[f"_put_{name}"] = getattr(kind, name).__set__
        names[f"_default_{name}"] = field.default
        put = name
        if callable(field.default_factory):
            names |= {f"_default_{name}": _MADE, f"_make_{name}": field.default_factory}
            put = f"_make_{name}() if {name} is _made else {name}"
        parameters.append(name if _wanted(field) else f"{name}=_default_{name}")
        lines.append(f"    _put_{name}(self, {put})\n")
    signature = ", ".join(["self", *(["*", *parameters] if parameters else [])])
    exec(f"def __init__({signature}):\n" + "".join(lines or ["    pass\n"]), names)  # noqa: S102
    initialise: Callable[..., None] = names["__init__"]
    return initialise


if TYPE_CHECKING:
    from dataclasses import dataclass as schema
else:
    schema = _schema


MOST_VALUES = 2_000_000
"""In one JSON text, above any that we write: each takes up to a hundred times its own bytes."""


def parsed(text: str | bytes) -> object | Unreadable:
    """The value of a JSON text from a stranger: one that is none, or would exhaust us, is unreadable."""
    if sum(map(text.count, (b"[", b"{", b",") if isinstance(text, bytes) else "[{,")) > MOST_VALUES:  # type: ignore[arg-type]
        return Unreadable("JSON", f"has more than {MOST_VALUES} values")
    try:
        value: object = json.loads(text)
    except RecursionError:
        return Unreadable("JSON", "is nested too deeply")
    except ValueError as wrong:
        return Unreadable("JSON", f"can't be parsed: {wrong}"[:200])
    return value


def unknown_keys(kind: type[Message], raw: object) -> tuple[str, ...]:
    """Keys of a message, and of the messages inside it, that this release does not read: `watch.probe.colour`."""
    if not isinstance(raw, Mapping):
        return ()
    hints = _hints(kind)
    unknown = [str(key) for key in raw if key not in hints]
    for name, hint in hints.items():
        unknown += [
            f"{name}.{key}" for inner, value in _inner(hint, raw.get(name)) for key in unknown_keys(inner, value)
        ]
    return tuple(dict.fromkeys(unknown))


def _inner(hint: Any, value: object) -> list[tuple[type[Message], object]]:
    """(kind, value) of the messages directly inside a field."""
    if isinstance(hint, type) and issubclass(hint, Message):
        return [(hint, value)]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return [pair for entry in value for pair in _inner(arguments[0], entry)]
    if isinstance(hint, types.UnionType):
        return [pair for kind in arguments for pair in _inner(kind, value)]
    return []


_known_names: dict[type[Message], tuple[str, ...]] = {}


def _names(kind: type[Message]) -> tuple[str, ...]:
    if kind not in _known_names:
        _known_names[kind] = tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
    return _known_names[kind]


_readers: dict[Any, Reader] = {}
_known_hints: dict[type[Message], dict[str, Any]] = {}


def _hints(kind: type[Message]) -> dict[str, Any]:
    if kind not in _known_hints:
        _known_hints[kind] = typing.get_type_hints(kind)
    return _known_hints[kind]


def _reader(hint: Any) -> Reader:
    if hint not in _readers:
        _readers[hint] = _made(hint)
    return _readers[hint]


def _message_reader(kind: type[Message]) -> Reader:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return partial(
        _message, kind, [(field.name, _reader(_hints(kind)[field.name]), _wanted(field)) for field in fields]
    )


def _wanted(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _optional(alternatives: Sequence[Any]) -> Reader:
    (inner,) = (_reader(alternative) for alternative in alternatives if alternative is not types.NoneType)
    return lambda raw: None if raw is None else inner(raw)


def _made(hint: Any) -> Reader:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, types.UnionType) and types.NoneType in arguments:
        return _optional(arguments)
    if origin is tuple:
        return partial(_many, _reader(arguments[0]))
    if origin is Mapping:
        return partial(_mapping, _reader(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return partial(_one_of, {member.value: member for member in hint})
    if isinstance(hint, type) and issubclass(hint, Message):
        return _message_reader(hint)
    raise TypeError(f"messages can't have a field of type {hint}")


def _message(kind: type[M], fields: Sequence[tuple[str, Reader, bool]], raw: object) -> M:
    if not isinstance(raw, (dict, Mapping)):  # most are a dict, which is told at once
        raise _Wrong(_found(raw, "an object"))
    values, name = {}, ""
    try:
        for name, reader, wanted in fields:
            if name in raw:
                values[name] = reader(raw[name])
            elif wanted:
                break
        else:
            return kind(**values)
    except _Wrong as wrong:
        wrong.path.append(name)
        raise
    raise _Wrong(f"has no key {name!r}")


def _exactly(kind: type, wanted: str, raw: object) -> Any:
    if not isinstance(raw, kind):
        raise _Wrong(_found(raw, wanted))
    return raw


def _integer(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise _Wrong(_found(raw, "a whole number"))
    if abs(raw) > MOST_INTEGER:
        raise _Wrong("is a number beyond 64 bits")
    return raw


def _seconds(raw: object) -> float:
    if not isinstance(raw, (int, float)) or isinstance(raw, bool):
        raise _Wrong(_found(raw, "a number"))
    if isinstance(raw, float) and not math.isfinite(raw):
        raise _Wrong(f"is {raw}; a finite number is wanted")
    if abs(raw) > MOST_SECONDS:
        raise _Wrong("is a number beyond all times")
    return float(raw)


_LEAVES = frozenset((str, bool, types.NoneType))
"""Types of most values inside of others, which are neither looked into nor changed: told first, since that is cheap."""
_UNCHANGED = _LEAVES | {int, float}
"""The same of what is written."""


def _shallow(raw: object, depth: int = DEEPEST) -> Any:
    """A value of any shape, small and plain enough to be kept and written again."""
    if depth == 0:
        raise _Wrong("is nested too deeply")
    if type(raw) in _LEAVES:
        return raw
    if isinstance(raw, (dict, Mapping)):
        return {str(name): _shallow(value, depth - 1) for name, value in raw.items()}
    if isinstance(raw, (list, tuple)):
        return [_shallow(value, depth - 1) for value in raw]
    if isinstance(raw, float):
        return _seconds(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return _integer(raw)
    if isinstance(raw, str):
        return raw
    raise _Wrong(_found(raw, "JSON"))


def _many(inner: Reader, raw: object) -> tuple[Any, ...]:
    if not isinstance(raw, (list, tuple)):
        raise _Wrong(_found(raw, "a list"))
    values: list[Any] = []
    try:
        values.extend(map(inner, raw))
    except _Wrong as wrong:
        wrong.path.append(str(len(values)))
        raise
    return tuple(values)


def _mapping(inner: Reader, raw: object) -> dict[str, Any]:
    if not isinstance(raw, (dict, Mapping)):
        raise _Wrong(_found(raw, "an object"))
    values: dict[str, Any] = {}
    for name, value in raw.items():
        key = _text(name)
        try:
            values[key] = inner(value)
        except _Wrong as wrong:
            wrong.path.append(key[:LONGEST_SHOWN])
            raise
    return values


def _one_of(members: Mapping[str, Enum], raw: object) -> Enum:
    member = members.get(raw) if isinstance(raw, str) else None
    if member is None:
        raise _Wrong(_found(raw, "one of " + ", ".join(map(str, members))))
    return member


_text = partial(_exactly, str, "a text")
_PLAIN: dict[Any, Reader] = {
    str: _text, int: _integer, float: _seconds, bool: partial(_exactly, bool, "true or false"), Any: _shallow
}  # fmt: skip


def _found(raw: object, wanted: str) -> str:
    return f"is {_shown(raw)}; {wanted} is wanted"


def _shown(raw: object) -> str:
    """A value as an error may quote it: short, and never all of a deep structure."""
    if isinstance(raw, Mapping):
        return "an object"
    if isinstance(raw, Sequence) and not isinstance(raw, str):
        return "a list"
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) > MOST_INTEGER:
        return "a number beyond 64 bits"
    if raw is None:
        return "null"
    return (json.dumps(raw) if isinstance(raw, (str, bool)) else repr(raw))[:LONGEST_SHOWN]


def _plain(value: Any) -> Any:
    if type(value) in _UNCHANGED:
        return value
    if isinstance(value, Message):
        return value.as_json()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return value


def side(theirs: str, ours: str) -> str:
    """The other side's release compared with ours: `l40s-deploy 0.3.0, newer than this one (0.2.0)`."""
    if is_newer(theirs, ours):
        return f"l40s-deploy {theirs[:40]}, newer than this one ({ours})"
    if is_newer(ours, theirs):
        return f"l40s-deploy {theirs[:40]}, older than this one ({ours})"
    return f"of another release than this one ({ours})"
