"""YAML text into plain values that still know their lines, and a file read strictly: a complaint names file, line or
path inside it, what is there and what is wanted.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml

from orchestrator.loading.resources import read_regular
from orchestrator.model.chosen import no_such
from orchestrator.protocol.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Once another mapping has merged this one, it holds what it merges too: only its own keys are judged."""
        _refuse_duplicates(self, vars(node).setdefault("own", node.value))
        super().flatten_mapping(node)


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


def parse_yaml(text: str, shown: str, fix: str = "`ansible-inventory -i FILE --list` reads the same file") -> Any:
    """The value in YAML text: mappings as `MarkedMapping`, `!vault` as `Vaulted`, `!unsafe` as the plain value.

    shown: the file's name in error messages; fix: what helps beside correcting the line. Raises InputError.
    """
    loader = None
    try:
        _refuse_depth(text)
        loader = _MarkingLoader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and re.match(r"\s*\t", "".join(text.splitlines()[mark.line : mark.line + 1])):
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
            known[event.anchor] = 1, DEEPEST  # until it ends: what holds itself has no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, levels = inside.pop()
            values, levels = values + 1, levels + 1
            if anchor is not None:
                known[anchor] = values, levels
        elif isinstance(event, yaml.AliasEvent):
            values, levels = known.get(event.anchor, (1, 0))
        anchor, before, deepest = inside[-1]
        inside[-1] = anchor, before + values, max(deepest, levels)
        words = f"it has more than {MOST_VALUES} values" if before + values > MOST_VALUES else ""
        if len(inside) - 1 + levels > DEEPEST:
            words = f"it nests more than {DEEPEST} levels deep, or holds itself"
        if words:
            raise yaml.MarkedYAMLError(problem=words, problem_mark=cast(yaml.Mark, event.start_mark))


def _refuse_duplicates(loader: _MarkingLoader, pairs: Any) -> None:
    seen = set()
    for key_node, _ in pairs:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                problem=f"the key {key!r} appears twice in one mapping", problem_mark=key_node.start_mark
            )
        seen.add(key)


def _marked_mapping(loader: _MarkingLoader, node: yaml.MappingNode) -> Any:
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


_MarkingLoader.add_constructor("tag:yaml.org,2002:map", _marked_mapping)
_MarkingLoader.add_constructor("!unsafe", _unsafe)
_MarkingLoader.add_constructor("!vault", _vaulted)
_MarkingLoader.add_constructor("!vault-encrypted", _vaulted)


T = TypeVar("T", bound="DataclassInstance")


class Section:
    """One mapping of a file. Each key is taken once with its type; `done` refuses the rest."""

    def __init__(self, raw: Any, file: str, path: str = "") -> None:
        self._file, self._path, self._taken = file, path, set[str]()
        if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
            raise self.wrong("", f"found {shown(raw)}, wanted a mapping with named keys")
        self._raw: Mapping[str, Any] = raw

    def wrong(self, key: str, what: str, fix: str = "") -> InputError:
        """An error at a key of this section."""
        inside = ".".join(part for part in (self._path, key) if part)
        return InputError(what, where=f"{self._file}: {inside or 'top level'}", fix=fix or "correct this file")

    def text(self, key: str, default: str | None = None, *, choices: tuple[str, ...] = ()) -> str:
        """A string, one of the choices where there are any."""
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"found {shown(value)}, wanted text")
        if choices and value not in choices:
            raise self.wrong(key, f"found {shown(value)}, wanted one of {', '.join(choices)}")
        return value

    def number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """An integer, not smaller than `least`."""
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"found {shown(value)}, wanted an integer, {least} or more")
        return value

    def optional_number(self, key: str, *, least: int = 1) -> int | None:
        """An integer, or None where the key is missing or null."""
        if self._raw.get(key) is None:
            self._taken.add(key)
            return None
        return self.number(key, least=least)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"found {shown(value)}, wanted true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where the key is missing."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"found {shown(value)}, wanted a list of strings")
        return tuple(value)

    def integers(self, key: str, count: int | None = None) -> tuple[int, ...]:
        """A list of positive integers, of just so many where a count is given."""
        value = self._take(key, None)
        fits = isinstance(value, list) and count in (None, len(value))
        if not fits or not all(type(item) is int and item > 0 for item in value):
            which = f"{count} positive" if count else "positive"
            raise self.wrong(key, f"found {shown(value)}, wanted a list of {which} integers")
        return tuple(value)

    def words(self, key: str) -> tuple[tuple[str, str], ...]:
        """A mapping of names to scalars, as text (`true` and null become ''); in the file's order."""
        section = self.section(key)
        return tuple((name, section.scalar(name)) for name in section.names())

    def scalar(self, key: str) -> str:
        """Text, a number, or '' for null and true: the value of a flag or of an environment variable."""
        value = self._take(key, "")
        if value is None or value is True:
            return ""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.wrong(key, f"found {shown(value)}, wanted text or a number (quote it if in doubt)")
        return str(value)

    def section(self, key: str) -> Section:
        """A mapping below this one; empty where the key is missing."""
        return Section(self._take(key, {}), self._file, f"{self._path}.{key}" if self._path else key)

    def sections(self, key: str) -> Iterator[tuple[str, Section]]:
        """Mappings below this one with names of the author's own; none where the key is missing."""
        below = self.section(key)
        return ((name, below.section(name)) for name in below.names())

    def into(self, kind: type[T], **given: Any) -> T:
        """A dataclass whose fields have the keys' names, types and defaults, but for what is given; refuses other keys.

        An integer is 1 or more, and may be 0 where its default is.
        """
        types = get_type_hints(kind)
        own = [field for field in fields(kind) if field.name not in given]
        read = {field.name: self._field(field, types[field.name]) for field in own}
        self.done()
        return kind(**read, **given)

    def _field(self, field: Field[Any], kind: Any) -> Any:
        key, default = field.name, None if field.default is MISSING else field.default
        if get_origin(kind) is Literal:
            return self.text(key, default, choices=get_args(kind))
        if kind is int:
            return self.number(key, default, least=0 if default == 0 else 1)
        if kind in (bool, str):
            return self.flag(key, bool(default)) if kind is bool else self.text(key, default)
        if kind == int | None:
            return self.optional_number(key)
        return self.texts(key) if kind == tuple[str, ...] else self.words(key)

    def all(self) -> dict[str, Any]:
        """All keys unchanged, for a caller that checks them itself."""
        self._taken |= {*self._raw}
        return dict(self._raw)

    def names(self) -> tuple[str, ...]:
        """The keys, in the file's order."""
        return tuple(self._raw)

    def done(self) -> None:
        """Refuse the first unknown key, and name the nearest known one."""
        for key in self._raw:
            if key not in self._taken:
                near = get_close_matches(key, self._taken, n=1)
                hint = f"did you mean {near[0]}?" if near else "known keys: " + ", ".join(sorted(self._taken))
                raise self.wrong(key, "found an unknown key", hint)

    def _take(self, key: str, default: Any) -> Any:
        self._taken.add(key)
        if key in self._raw:
            return self._raw[key]
        if default is None:
            raise self.wrong(key, "found nothing, wanted a value")
        return default


def read(path: Path) -> Section:
    """The top level of a YAML file. Raises InputError for a file that can't be read or is no YAML mapping."""
    return Section(parse_yaml(read_text(path, str(path)), str(path), ""), str(path))


_LONGEST_NAME = 128


def is_name(text: str) -> bool:
    """Whether it can be the name of a file NAME.yml, and is no path."""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", text) is not None
    return plain and len(text) <= _LONGEST_NAME and not text.endswith((".yml", ".yaml"))


def choose(kind: str, name: str, folders: tuple[Path, ...]) -> Path:
    """The file that a name means: a path to a .yml, or NAME.yml in the first folder that has it."""
    if name.endswith((".yml", ".yaml")):
        return Path(name)
    if is_name(name):
        for folder in folders:
            if (file := folder / f"{name}.yml").is_file():
                return file
    raise no_such(kind, name, names(folders), where="command line")


def names(folders: tuple[Path, ...]) -> tuple[str, ...]:
    """Every NAME.yml in these folders, each once, sorted."""
    return tuple(sorted({file.stem for folder in folders if folder.is_dir() for file in folder.glob("*.yml")}))


def shown(value: object) -> str:
    """A value as an error quotes it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


WIDTH = 110


class _Plain(yaml.SafeDumper):
    """Lists are indented below their key, as people write them, and nothing is an anchor."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - PyYAML's signature
        """Never indentless."""
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """What occurs twice is written twice."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Lines as lines: a script is read by people too."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


def yaml_text(document: Any, *comment: str) -> str:
    """A document below its comment's lines."""
    text = yaml.dump(document, Dumper=_Plain, sort_keys=False, width=WIDTH, allow_unicode=True)
    return "".join(f"# {line}\n" for line in comment) + text
