"""Wiring files: a machine description in YAML, read strictly; every error names the path inside the file."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from l40s_lab.hardware import machine as kinds
from l40s_lab.hardware.machine import Machine
from l40s_lab.hardware.realise import nic_ports
from l40s_lab.hardware.variation import changed
from l40s_lab.life.addressing import MAX_NODES
from orchestrator.loading.yaml_fields import parse_yaml
from orchestrator.protocol.errors import InputError

BUILT_IN = Path(__file__).resolve().parents[1] / "wirings"
_ABOUT = ("summary", "nodes", "nodes_per_gang")
"""Keys of a document besides the machine."""
_NODES_PER_GANG = 4
_MOST_BASES = 8
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
    """The document of a built-in wiring, or of a file, merged with its `base`; raises InputError."""
    document, where = _complete(name, "--wiring", depth=0)
    for index in range(max(1, len(_nodes(document, where)))):
        parse(document, where, index)
    nodes_per_gang(document, where)
    return document


def summaries() -> dict[str, str]:
    """Name of each built-in wiring -> its description in a sentence."""
    return {name: str(_read(BUILT_IN / f"{name}.yml", "--wiring").get("summary", "")) for name in names()}


def nodes_per_gang(document: dict[str, Any], where: str) -> int:
    """Default number of nodes in a gang of such machines."""
    number = _value(int, document.get("nodes_per_gang", _NODES_PER_GANG), f"{where}: nodes_per_gang")
    if not 1 <= number <= MAX_NODES:
        raise _wrong(f"{where}: nodes_per_gang", number, f"1 to {MAX_NODES}")
    assert isinstance(number, int)
    return number


def _complete(name: str, where: str, depth: int) -> tuple[dict[str, Any], str]:
    """(document without a base, its place for messages)"""
    path = BUILT_IN / f"{name}.yml"
    if not path.is_file() or "/" in name:
        path = Path(name)
    document = _read(path, where)
    if "base" not in document:
        return document, str(path)
    if depth == _MOST_BASES or not isinstance(document["base"], str):
        raise _wrong(f"{path}: base", document["base"], "the name of a built-in wiring, or of a file beside this one")
    beside = path.parent / document["base"]
    base, _ = _complete(str(beside) if beside.is_file() else document["base"], f"{path}: base", depth + 1)
    about = {key: document[key] for key in _ABOUT if key in document}
    change = {key: value for key, value in document.items() if key not in (*_ABOUT, "base")}
    return {**changed(base, change, str(path)), **about}, str(path)


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise InputError(
            f"no wiring {str(path)!r} ({getattr(failure, 'strerror', None) or 'not text'})",
            where=where,
            fix=f"one of {', '.join(names())}, or the path of a wiring file",
        ) from failure
    document = parse_yaml(text, str(path), "see lab/src/l40s_lab/wirings for examples")
    if not isinstance(document, dict):
        raise InputError("a wiring is a mapping", where=str(path), fix="see lab/src/l40s_lab/wirings for examples")
    try:
        found: dict[str, Any] = plain(document)
    except RecursionError:
        raise InputError("a part contains itself", where=str(path), fix="write it without that alias") from None
    return found


def plain(value: Any) -> Any:
    """Without the lines and columns of a read document, to be written down again."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)


def parse(document: dict[str, Any], where: str, index: int = 0) -> Machine:
    """The machine that a wiring document describes for the node with this index; raises InputError.

    Its `nodes` is a list of changes: node N gets entry N, modulo the length of the list.
    """
    described = {key: value for key, value in document.items() if key not in _ABOUT}
    nodes = _nodes(document, where)
    if nodes:
        where = f"{where}: nodes[{index % len(nodes)}]"
        described = changed(described, nodes[index % len(nodes)], where)
    machine = _build(Machine, described, where)
    assert isinstance(machine, Machine)
    known = {port.netdev for port in nic_ports(machine)}
    for bond in machine.bonds:
        for slave in bond.slaves:
            if slave not in known:
                raise _wrong(f"{where}: bonds.{bond.name}", slave, f"a port's netdev ({', '.join(sorted(known))})")
    if machine.primary not in known | {bond.name for bond in machine.bonds}:
        raise _wrong(f"{where}: primary", machine.primary, "the name of a port or a bond")
    return machine


def _nodes(document: dict[str, Any], where: str) -> list[Any]:
    nodes = document.get("nodes", [])
    if not isinstance(nodes, list):
        raise _wrong(f"{where}: nodes", nodes, "a list of changes")
    return nodes


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


def _value(hint: Any, raw: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint == kinds.Card | None:
        return _card(raw, where)
    if origin is tuple:
        return _values(typing.get_args(hint)[0], raw, where)
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(typing.get_args(hint), raw, where)
    if origin is typing.Literal:
        if raw not in typing.get_args(hint):
            raise _wrong(where, raw, f"one of {', '.join(map(str, typing.get_args(hint)))}")
        return raw
    if is_dataclass(hint):
        return _build(hint, raw, where)
    return _plain(hint, raw, where)


def _values(hint: Any, raw: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list):
        raise _wrong(where, raw, "a list")
    return tuple(_value(hint, item, f"{where}[{number}]") for number, item in enumerate(raw))


def _plain(hint: Any, raw: Any, where: str) -> Any:
    """A number, text or truth; YAML's truths are no numbers."""
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
    raise _wrong(where, raw, "a value of another type")


def _card(raw: Any, where: str) -> Any:
    if raw is None:
        return None
    if not isinstance(raw, dict) or len(raw) != 1 or next(iter(raw)) not in _CARDS:
        raise _wrong(where, raw, f"one of {', '.join(_CARDS)} with its properties, or nothing")
    [(name, properties)] = raw.items()
    return _build(_CARDS[name], properties or {}, f"{where}.{name}")


def _wrong(where: str, found: Any, wanted: str) -> InputError:
    return InputError(
        f"found {found!r}, wanted {wanted}", where=where, fix="see lab/src/l40s_lab/wirings for examples with the lab"
    )
