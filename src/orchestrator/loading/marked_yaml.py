"""YAML text into plain values that still know the line they came from, so that an error can point at it."""

from __future__ import annotations

import copy
import errno
import os
import shlex
import stat
from pathlib import Path
from typing import Any, cast

import yaml

from orchestrator.model.errors import InputError

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # PyYAML built without libyaml: slower, the same result
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

_NOT_YAML = (
    yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError,
)  # fmt: skip
"""What SafeConstructor raises on scalars such as `!!int x`, `!!bool x` or 2001-99-99."""


DEEPEST = 100
"""Nested collections beyond this are refused: libyaml's composer recurses in C and would end the process."""
MOST_VALUES = 1_000_000
"""A thousand nodes with a thousand variables each."""


class MarkedMapping(dict[Any, Any]):
    """A mapping with the line (from 1) of each of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class Vaulted:
    """A value that ansible-vault has encrypted; we hold no vault password and never look inside."""


class _MarkingLoader(_Parser):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _refuse_duplicates(self, node)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, shown: str) -> Any:
    """The value in a YAML file: mappings as `MarkedMapping`, `!vault` as `Vaulted`, `!unsafe` as the plain value.

    shown: the file's name in error messages. Raises InputError for a file that cannot be read or parsed.
    """
    return parse_yaml(read_text(path, shown), shown)


def read_text(path: Path, shown: str) -> str:
    """A file's UTF-8 text. Raises InputError where it can't be read."""
    try:
        return read_regular(path)[1].decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot be read: {why}", where=shown, fix="check the path and its permissions") from None
    except UnicodeDecodeError as error:
        why = f"{error.reason} at byte {error.start}"
        raise InputError(f"is not UTF-8 text: {why}", where=shown, fix="save it as UTF-8") from None


def read_regular(path: Path) -> tuple[int, bytes]:
    """(mode, content). Raises OSError for what is no regular file: a pipe would be waited for, a device has no end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.ENXIO, "not a regular file")
        return mode, file.read()


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def parse_yaml(text: str, shown: str, fix: str = "`ansible-inventory -i FILE --list` reads the same file") -> Any:
    """The value in YAML text; see read_yaml. fix: what helps beside correcting the line."""
    loader = None
    try:
        _refuse_depth(text)
        loader = _MarkingLoader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and text.splitlines()[mark.line : mark.line + 1] and "\t" in _indent(text.splitlines()[mark.line]):
            raise InputError(
                "is indented with a TAB; YAML needs spaces",
                where=f"{shown}:{mark.line + 1}",
                fix=f"replace the TABs with spaces: sed -i 's/\\t/  /g' {shlex.quote(shown)}",
            ) from None
        raise InputError(
            f"is not valid YAML: {error.problem or error.context}",
            where=f"{shown}:{mark.line + 1}" if mark else shown,
            fix=f"fix that line; {fix}" if fix else "fix that line",
        ) from None
    except _NOT_YAML as error:
        reason = " ".join(str(error).split())
        raise InputError(f"is not valid YAML: {reason}", where=shown, fix="correct the file") from None
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_depth(text: str) -> None:
    """And size, both with what aliases stand for: ten lines can name each other a billion times."""
    known: dict[str | None, tuple[int, int]] = {}
    inside: list[tuple[str | None, int, int]] = [(None, 0, 0)]  # of each open collection: anchor, values, levels below
    for event in yaml.parse(text, Loader=_Parser):
        values, levels = 1, 0
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, 0, 0))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, levels = inside.pop()
            values, levels = values + 1, levels + 1
            if anchor is not None:
                known[anchor] = values, levels
        elif isinstance(event, yaml.AliasEvent):
            values, levels = known.get(event.anchor, (1, 0))
        anchor, before, deepest = inside[-1]
        inside[-1] = anchor, before + values, max(deepest, levels)
        too_deep = len(inside) - 1 + levels > DEEPEST
        if too_deep or before + values > MOST_VALUES:
            words = (
                f"it nests more than {DEEPEST} levels deep" if too_deep else f"it has more than {MOST_VALUES} values"
            )
            raise yaml.MarkedYAMLError(problem=words, problem_mark=cast(yaml.Mark, event.start_mark))


def _refuse_duplicates(loader: _MarkingLoader, node: yaml.Node) -> None:
    seen = set()
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                problem=f"the key {key!r} appears twice in one mapping", problem_mark=key_node.start_mark
            )
        seen.add(key)


def _mapping(loader: _MarkingLoader, node: yaml.MappingNode) -> Any:
    marked = MarkedMapping()
    yield marked
    marked.update(loader.construct_mapping(node))
    for key_node, _ in node.value:
        marked.lines[loader.construct_object(key_node)] = key_node.start_mark.line + 1


def _unsafe(loader: _MarkingLoader, node: yaml.Node) -> Any:
    plain = copy.copy(node)  # the node itself is marked as being under construction
    plain.tag = loader.resolve(type(node), node.value, (True, False))  # type: ignore[no-untyped-call]
    return loader.construct_object(plain, deep=True)


def _vaulted(_loader: _MarkingLoader, _node: yaml.Node) -> Vaulted:
    return Vaulted()


_MarkingLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
_MarkingLoader.add_constructor("!unsafe", _unsafe)
_MarkingLoader.add_constructor("!vault", _vaulted)
_MarkingLoader.add_constructor("!vault-encrypted", _vaulted)
