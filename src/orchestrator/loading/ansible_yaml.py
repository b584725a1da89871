"""An Ansible YAML inventory as groups, hosts and variables, read as ansible-core 2.19 reads it.

Rules taken from Ansible's documentation ("How to build your inventory", "How variables are merged") and held
by a test that compares our reading with `ansible-inventory --list`: a host's variables come from, weakest
first, the group `all` in the file, the host's groups in the file (by depth, ansible_group_priority, name),
group_vars/all, group_vars/<group> in that same order, the host in the file, host_vars/<host>. A mapping
replaces a mapping (hash_behaviour=replace). Where Ansible warns and goes on (a misspelt section, a key that
stands twice, one name for a group and a host), we stop: on a cluster a skipped line is a lost day.
"""

from __future__ import annotations

import ipaddress
import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from orchestrator.loading.yaml_fields import MarkedMapping, parse_yaml, read_text
from orchestrator.protocol.errors import InputError

_SECTIONS = ("hosts", "vars", "children")
_VARS_EXTENSIONS = ("", ".yml", ".yaml", ".json")  # Ansible's YAML_FILENAME_EXTENSIONS, the bare name first
VAULT_HEADER = "$ANSIBLE_VAULT;"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a variable was written: the file as shown to a user, the line, the path of keys inside the file."""

    file: str
    line: int
    path: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}" if self.path else place

    def below(self, key: object, line: int = 0) -> Origin:
        """The place of a key inside this one."""
        return Origin(self.file, line or self.line, f"{self.path}/{key}" if self.path else str(key))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable's value, untouched (templates are text, vaulted values are `Vaulted`), and its place."""

    value: Any
    origin: Origin


@dataclass
class InventoryGroup:
    """A group as the file has it; hosts and children in the order in which they were first named."""

    name: str
    origin: Origin
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    priority: int = 1


@dataclass
class Host:
    """A host as the file has it."""

    name: str
    origin: Origin
    variables: dict[str, Variable] = field(default_factory=dict)


@dataclass
class AnsibleInventory:
    """Groups and hosts by name, in the order in which the file first names them."""

    path: Path
    shown: str
    groups: dict[str, InventoryGroup] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    _files: dict[Path, dict[str, Variable]] = field(default_factory=dict)

    def hosts_of(self, group: str) -> tuple[str, ...]:
        """A group's own hosts, then those of its child groups level by level, each host once."""
        groups = self._reached([group], "children")
        return tuple(dict.fromkeys(host for name in groups for host in self.groups[name].hosts))

    def variables_of(self, host: str) -> Mapping[str, Variable]:
        """All variables of a host, merged as Ansible merges them."""
        above = self._reached([name for name, group in self.groups.items() if host in group.hosts], "parents")
        own = {*above} - {"all", "ungrouped"} or {"ungrouped"}
        groups = ["all", *sorted(own, key=lambda name: (self._depth(name), self._priority(name), name))]
        written = [self.groups[name].variables for name in groups if name in self.groups]
        beside = [self._vars_files("group_vars", name) for name in groups]
        layers = (*written, *beside, self.hosts[host].variables, self._vars_files("host_vars", host))
        return {name: variable for layer in layers for name, variable in layer.items()}

    def _reached(self, first: list[str], onward: Literal["children", "parents"]) -> list[str]:
        """These groups, and all that they lead to."""
        for name in first:
            first.extend(other for other in getattr(self.groups[name], onward) if other not in first)
        return first

    def _priority(self, group: str) -> int:
        return self.groups[group].priority if group in self.groups else 1

    def _depth(self, group: str) -> int:
        """Longest path down from `all`, the parent of every group without one."""
        parents = self.groups[group].parents if group in self.groups else []
        return 1 + max((self._depth(parent) for parent in parents if parent != "all"), default=0)

    def _vars_files(self, folder: str, name: str) -> dict[str, Variable]:
        merged: dict[str, Variable] = {}
        beside = self.path.resolve().parent
        for path in _vars_paths(beside / folder, name) if not name.startswith("/") else ():
            if path not in self._files:
                self._files[path] = _read_vars(path, str(Path(self.shown).parent / path.relative_to(beside)))
            merged |= self._files[path]
        return merged


def read_ansible_inventory(path: Path) -> AnsibleInventory:
    """Read one plain YAML inventory file. Raises InputError with the file, the path inside it and what is wanted."""
    inventory = AnsibleInventory(path, str(path))
    data = parse_yaml(read_text(path, inventory.shown), inventory.shown)
    if not isinstance(data, MarkedMapping):
        raise InputError(
            f"contains {_kind(data)}; wanted a mapping of groups, as an Ansible YAML inventory has it",
            where=inventory.shown,
            fix="begin with `gangs:`; inventory/reference.yml is an annotated example",
        )
    for name, body, origin in _items(data, Origin(inventory.shown, 0, "")):
        _read_group(inventory, name, body, origin, ())
    refuse_shared_names(inventory)
    return inventory


def _items(entries: MarkedMapping, place: Origin) -> Iterator[tuple[Any, Any, Origin]]:
    """Key, value and place of each."""
    return ((key, value, place.below(key, entries.lines.get(key, 0))) for key, value in entries.items())


def _named(what: str, name: object, origin: Origin) -> str:
    if not isinstance(name, str) or not name:
        raise wrong(origin, f"found the {what} name {name!r}", "a text", "put it into quotes")
    return name


def _read_group(
    inventory: AnsibleInventory, name: object, body: object, origin: Origin, above: tuple[str, ...]
) -> None:
    name = _named("group", name, origin)
    if name in above:
        raise _loop(origin, name)
    group = inventory.groups.setdefault(name, InventoryGroup(name, origin))
    if body is None:
        return
    if not isinstance(body, MarkedMapping):
        raise wrong(origin, f"the group is {_kind(body)}", "a mapping", "give it hosts:, vars: or children:")
    for section, content, place in _items(body, origin):
        if section not in _SECTIONS:
            near = get_close_matches(str(section), _SECTIONS, n=1)
            hint = f"write {near[0]}:" if near else "remove it, or move it below vars:"
            raise wrong(place, f"{section!r} is not a section of a group", "hosts, vars or children", hint)
        for key, value, inside in _items(_entries(content, place), place):
            if section == "vars":
                _read_group_variable(group, key, value, inside)
            elif section == "hosts":
                _read_hosts(inventory, group, key, value, inside)
            else:
                _read_group(inventory, key, value, inside, (*above, name))
                _adopt(inventory, group, key, place)


def _loop(origin: Origin, name: str) -> InputError:
    return wrong(origin, f"group {name!r} is below itself", "groups without a loop", "remove one of the references")


def _adopt(inventory: AnsibleInventory, group: InventoryGroup, child: str, place: Origin) -> None:
    if child in group.children:
        return
    if child == "all":
        raise wrong(place.below(child), "`all` is a child group", "`all` above every group", "remove it here")
    if group.name == "ungrouped":
        raise wrong(place.below(child), "`ungrouped` has a child group", "hosts without a group in it", "move it out")
    if group.name in inventory._reached([child], "children"):
        raise _loop(place.below(child), child)
    group.children.append(child)
    inventory.groups[child].parents.append(group.name)


def _read_group_variable(group: InventoryGroup, name: object, value: Any, origin: Origin) -> None:
    if name != "ansible_group_priority":
        group.variables[_named("variable", name, origin)] = Variable(value, origin)
        return
    try:
        group.priority = int(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong(origin, f"found {value!r}", "an integer", "write 10") from None


def _read_hosts(
    inventory: AnsibleInventory, group: InventoryGroup, pattern: object, variables: object, origin: Origin
) -> None:
    pattern = _named("host", pattern, origin)
    try:
        names, port = expand(pattern)
    except BadPattern as bad:
        what = f"the host name {pattern!r} {bad}"
        raise wrong(origin, what, "a name or a range", "write it as l40s-[0:3]") from None
    if not isinstance(variables, MarkedMapping | None):
        wanted = "a mapping of its variables, or nothing"
        raise wrong(origin, f"the host has {_kind(variables)}", wanted, "write name: value")
    own = _variables(variables or MarkedMapping(), origin)
    for name in names:
        if name not in inventory.hosts:
            ports = {} if port is None else {"ansible_port": Variable(port, origin)}
            inventory.hosts[name] = Host(name, origin, ports)
        if name not in group.hosts:
            group.hosts.append(name)
        inventory.hosts[name].variables |= own


def _variables(entries: MarkedMapping, place: Origin) -> dict[str, Variable]:
    return {_named("variable", name, at): Variable(value, at) for name, value, at in _items(entries, place)}


def _entries(content: object, place: Origin) -> MarkedMapping:
    """A section's mapping; a single text stands for one name without a body, as Ansible has it."""
    if isinstance(content, MarkedMapping):
        return content
    entries = MarkedMapping()
    if isinstance(content, str):
        entries[content] = None
    elif content is not None:
        raise wrong(place, f"found {_kind(content)}", "a mapping", "end each name with a colon instead of a dash")
    return entries


def refuse_shared_names(inventory: AnsibleInventory) -> None:
    """Raises InputError where one name is a host's and a group's: Ansible warns, and a pattern means both."""
    for name, host in inventory.hosts.items():
        if name in inventory.groups:
            raise wrong(host.origin, f"{name!r} is both a host and a group", "two names", "rename one of them")


def _vars_paths(folder: Path, name: str) -> list[Path]:
    """The files of group_vars/ or host_vars/ for one name: the first of name, name.yml, name.yaml, name.json;
    a directory stands for all files below it, in order of their names."""
    for extension in _VARS_EXTENSIONS:
        path = folder / f"{name}{extension}"
        if os.path.isdir(path):  # noqa: PTH112 - False, not an error, for a name longer than a file's can be
            return list(_vars_below(path))
        if os.path.exists(path):  # noqa: PTH110 - as above
            return [path]
    return []


def _vars_below(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(folder), fix="check its permissions") from None
    for path in entries:
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir() and not path.suffix:
            yield from _vars_below(path)
        elif path.is_file() and path.suffix in _VARS_EXTENSIONS:
            yield path


def _read_vars(path: Path, shown: str) -> dict[str, Variable]:
    """Variables of one file. A wholly vaulted file is passed over: what it holds is not for us."""
    text = read_text(path, shown)
    data = None if text.startswith(VAULT_HEADER) else parse_yaml(text, shown)
    if data and not isinstance(data, MarkedMapping):
        raise InputError(f"contains {_kind(data)}; wanted a mapping of variables", where=shown, fix="write name: value")
    return _variables(data or MarkedMapping(), Origin(shown, 0, ""))


def wrong(origin: Origin, value: str, wanted: str, fix: str) -> InputError:
    """The error at a place of the inventory."""
    return InputError(f"{value}; wanted {wanted}", where=str(origin), fix=fix)


def _kind(value: object) -> str:
    """A value's type in a user's words."""
    if value is None:
        return "nothing"
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "a truth value", int: "a number"}
    return next((word for kind, word in names.items() if isinstance(value, kind)), f"a {type(value).__name__}")


MOST_HOSTS = 4096
"""A pattern that stands for more is taken for a typing error."""

_LETTERS = tuple(string.ascii_letters)
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BOUNDS = re.compile(r"(?P<begin>[^:]*):(?P<end>[^:]+)(?::(?P<step>[^:]*))?")
_BRACKETED_PORT = re.compile(r"\[(?P<host>[^\[\]]+)\]:(?P<port>[0-9]+)")
_PLAIN_PORT = re.compile(r"(?P<host>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<port>[0-9]+)")


class BadPattern(ValueError):
    """A host pattern that Ansible would not expand either. The message says what is wrong."""


def expand(pattern: str) -> tuple[tuple[str, ...], int | None]:
    """The names that a pattern stands for, in order, and the port, None where none is given. As with Ansible, an IPv6
    address needs brackets to have a port (`[address]:port`). Raises BadPattern."""
    host, port = _split_port(pattern)
    return _expand_ranges(host), port


def _split_port(pattern: str) -> tuple[str, int | None]:
    if _is_ipv6(pattern):
        return pattern, None
    match = _BRACKETED_PORT.fullmatch(pattern) or _PLAIN_PORT.fullmatch(pattern)
    if match is None:
        return pattern, None
    port = int(match["port"][:8])
    if not 0 < port < 65536:
        raise BadPattern(f"port {match['port']} is not between 1 and 65535")
    return match["host"], port


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _expand_ranges(pattern: str) -> tuple[str, ...]:
    names, at = [""], 0
    for match in _RANGE.finditer(pattern):
        items = _range_items(match[1])
        if len(names) * len(items) > MOST_HOSTS:
            raise BadPattern(f"expands to more than {MOST_HOSTS} hosts")
        names = [f"{name}{pattern[at : match.start()]}{item}" for name in names for item in items]
        at = match.end()
    names = [name + pattern[at:] for name in names]
    if any("[" in name or "]" in name for name in names):
        raise BadPattern("has an unmatched bracket; a range is [0:3], [01:10] or [a:c]")
    if not all(names):
        raise BadPattern("is an empty name")
    return tuple(names)


def _range_items(bounds: str) -> Sequence[str]:
    match = _BOUNDS.fullmatch(bounds)
    if match is None:
        raise BadPattern(f"[{bounds}] is not a range; wanted [begin:end] or [begin:end:step], for example [0:3]")
    begin, end = match["begin"] or "0", match["end"]
    step = 1 if match["step"] is None else _number(match["step"], bounds)
    if step < 1:
        raise BadPattern(f"the step in [{bounds}] is not above 0")
    if begin in _LETTERS and end in _LETTERS:
        items: Sequence[str] = _LETTERS[_LETTERS.index(begin) : _LETTERS.index(end) + 1 : step]
    else:
        items = _numbers(begin, end, step, bounds)
    if not items:
        raise BadPattern(f"[{bounds}] is empty: its begin is after its end")
    return items


def _numbers(begin: str, end: str, step: int, bounds: str) -> list[str]:
    """Leading zeros of `begin` give all of them its width."""
    width = len(begin) if begin.startswith("0") else 1
    if width not in (1, len(end)):
        raise BadPattern(f"begin and end in [{bounds}] must have the same length because of leading zeros")
    first, last = _number(begin, bounds), _number(end, bounds)
    if (last - first) // step >= MOST_HOSTS:
        raise BadPattern(f"[{bounds}] expands to more than {MOST_HOSTS} hosts")
    return [str(number).zfill(width) for number in range(first, last + 1, step)]


def _number(text: str, bounds: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadPattern(f"[{bounds}] is neither a range of numbers nor of letters")
    return int(text)
