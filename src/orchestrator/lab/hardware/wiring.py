"""Wiring files: a machine description in YAML, read strictly, with the path inside the file in every complaint."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from orchestrator.lab.hardware import machine as kinds
from orchestrator.lab.hardware.machine import Machine
from orchestrator.lab.hardware.realise import nic_ports
from orchestrator.model.errors import InputError

BUILT_IN = Path(__file__).resolve().parents[1] / "wirings"
_CARDS = {
    "gpu": kinds.Gpu,
    "nic": kinds.Nic,
    "disk": kinds.Disk,
    "display": kinds.DisplayAdapter,
    "switch": kinds.PcieSwitch,
}


def names() -> tuple[str, ...]:
    """The wirings that ship with the lab."""
    return tuple(sorted(path.stem for path in BUILT_IN.glob("*.yml")))


def load(name: str) -> dict[str, Any]:
    """The document of a built-in wiring, or of a file; raises InputError."""
    import yaml

    path = BUILT_IN / f"{name}.yml"
    if not path.is_file() or "/" in name:
        path = Path(name)
    try:
        text = path.read_text()
    except OSError as failure:
        raise InputError(
            f"no wiring {name!r} ({failure.strerror})",
            where="--wiring",
            fix=f"one of {', '.join(names())}, or the path of a wiring file",
        ) from failure
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as failure:
        raise InputError(f"not YAML: {failure}", where=str(path), fix="see the wirings that ship") from failure
    if not isinstance(document, dict):
        raise InputError("a wiring is a mapping", where=str(path), fix="see the wirings that ship")
    parse(document, str(path))
    return document


def parse(document: dict[str, Any], where: str) -> Machine:
    """The machine that a wiring document describes; raises InputError."""
    machine = _build(Machine, {key: value for key, value in document.items() if key != "summary"}, where)
    assert isinstance(machine, Machine)
    known = {port.netdev for port in nic_ports(machine)}
    for bond in machine.bonds:
        for slave in bond.slaves:
            if slave not in known:
                raise _wrong(f"{where}: bonds.{bond.name}", slave, f"a port's netdev ({', '.join(sorted(known))})")
    if machine.primary not in known | {bond.name for bond in machine.bonds}:
        raise _wrong(f"{where}: primary", machine.primary, "the name of a port or a bond")
    return machine


def _build(kind: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise _wrong(where, raw, "a mapping")
    hints = typing.get_type_hints(kind, vars(kinds))
    known = {item.name: item for item in fields(kind)}
    for key in raw:
        if key not in known:
            raise _wrong(f"{where}: {key}", key, f"one of {', '.join(known)}")
    missing = [name for name, item in known.items() if item.default is MISSING and name not in raw]
    if missing:
        raise _wrong(where, "nothing", f"a value for {missing[0]}")
    return kind(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in raw.items()})


def _value(hint: Any, raw: Any, where: str) -> Any:  # noqa: PLR0911 - one return a kind of value
    origin = typing.get_origin(hint)
    if hint == kinds.Card | None:
        return _card(raw, where)
    if origin is tuple:
        if not isinstance(raw, list):
            raise _wrong(where, raw, "a list")
        element = typing.get_args(hint)[0]
        return tuple(_value(element, item, f"{where}[{number}]") for number, item in enumerate(raw))
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(typing.get_args(hint), raw, where)
    if origin is typing.Literal:
        if raw not in typing.get_args(hint):
            raise _wrong(where, raw, f"one of {', '.join(map(str, typing.get_args(hint)))}")
        return raw
    if is_dataclass(hint):
        return _build(hint, raw, where)
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if not isinstance(raw, hint) or (hint is int and isinstance(raw, bool)):
        raise _wrong(where, raw, f"{hint.__name__}")
    return raw


def _first_that_fits(hints: tuple[Any, ...], raw: Any, where: str) -> Any:
    for hint in hints:
        if hint is type(None):
            if raw is None:
                return None
            continue
        try:
            return _value(hint, raw, where)
        except InputError:
            continue
    raise _wrong(where, raw, "another kind of value")


def _card(raw: Any, where: str) -> Any:
    if raw is None:
        return None
    if not isinstance(raw, dict) or len(raw) != 1 or next(iter(raw)) not in _CARDS:
        raise _wrong(where, raw, f"one of {', '.join(_CARDS)} with its properties, or nothing")
    [(name, properties)] = raw.items()
    return _build(_CARDS[name], properties or {}, f"{where}.{name}")


def _wrong(where: str, found: Any, wanted: str) -> InputError:
    return InputError(f"found {found!r}, wanted {wanted}", where=where, fix="see the wirings that ship with the lab")
