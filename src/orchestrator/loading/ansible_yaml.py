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
from typing import Any

from orchestrator.loading.yaml_fields import MarkedMapping, parse_yaml, read_text, read_yaml
from orchestrator.model.errors import InputError

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
        seen: dict[str, None] = {}
        for name in self._below(group):
            seen.update(dict.fromkeys(self.groups[name].hosts))
        return tuple(seen)

    def variables_of(self, host: str) -> Mapping[str, Variable]:
        """All variables of a host, merged as Ansible merges them."""
        groups = sorted(self._groups_of(host), key=lambda name: (self._depth(name), self._priority(name), name))
        merged: dict[str, Variable] = {}
        for name in ("all", *groups):
            merged.update(self.groups[name].variables if name in self.groups else {})
        for name in ("all", *groups):
            merged.update(self._vars_files("group_vars", name))
        merged.update(self.hosts[host].variables)
        merged.update(self._vars_files("host_vars", host))
        return merged

    def _below(self, group: str) -> list[str]:
        found = [group]
        for name in found:
            found.extend(child for child in self.groups[name].children if child not in found)
        return found

    def _groups_of(self, host: str) -> set[str]:
        found = [name for name, group in self.groups.items() if host in group.hosts]
        for name in found:
            found.extend(parent for parent in self.groups[name].parents if parent not in found)
        return set(found) - {"all", "ungrouped"} or {"ungrouped"}

    def _priority(self, group: str) -> int:
        return self.groups[group].priority if group in self.groups else 1

    def _depth(self, group: str) -> int:
        """Longest path down from `all`, the parent of every group without one."""
        parents = self.groups[group].parents if group in self.groups else []
        return 1 + max((self._depth(parent) for parent in parents if parent != "all"), default=0)

    def _vars_files(self, folder: str, name: str) -> dict[str, Variable]:
        merged: dict[str, Variable] = {}
        if name.startswith("/"):
            return merged
        for path in _vars_paths(self.path.resolve().parent / folder, name):
            if path not in self._files:
                self._files[path] = _read_vars(path, _shown_beside(self.shown, self.path, path))
            merged.update(self._files[path])
        return merged


def read_ansible_inventory(path: Path) -> AnsibleInventory:
    """Read one plain YAML inventory file. Raises InputError with the file, the path inside it and what is wanted."""
    shown = str(path)
    data = read_yaml(path, shown)
    if not isinstance(data, MarkedMapping):
        raise InputError(
            f"contains {_kind(data)}; wanted a mapping of groups, as an Ansible YAML inventory has it",
            where=shown,
            fix="begin with `gangs:`; inventory/reference.yml is an annotated example",
        )
    inventory = AnsibleInventory(path, shown)
    top = Origin(shown, 0, "")
    for name, body in data.items():
        _read_group(inventory, name, body, top.below(name, data.lines.get(name, 0)), ())
    refuse_shared_names(inventory)
    return inventory


def _read_group(
    inventory: AnsibleInventory, name: object, body: object, origin: Origin, above: tuple[str, ...]
) -> None:
    if not isinstance(name, str) or not name:
        raise _wrong(origin, f"the group name {name!r} is {_kind(name)}", "a text", "put it into quotes")
    if name in above:
        raise _wrong(origin, f"group {name!r} is below itself", "groups without a loop", "remove one of the references")
    group = inventory.groups.setdefault(name, InventoryGroup(name, origin))
    if body is None:
        return
    if not isinstance(body, MarkedMapping):
        raise _wrong(origin, f"the group is {_kind(body)}", "a mapping", "give it hosts:, vars: or children:")
    for section, content in body.items():
        place = origin.below(section, body.lines.get(section, 0))
        if section not in _SECTIONS:
            near = get_close_matches(str(section), _SECTIONS, n=1)
            hint = f"write {near[0]}:" if near else "remove it, or move it below vars:"
            raise _wrong(place, f"{section!r} is not a section of a group", "hosts, vars or children", hint)
        if content is None:
            continue
        entries = _entries(content, place)
        if section == "vars":
            _read_group_vars(group, entries, place)
        elif section == "hosts":
            for pattern, variables in entries.items():
                _read_hosts(inventory, group, pattern, variables, place.below(pattern, _line(entries, pattern)))
        else:
            for child, below in entries.items():
                _read_group(inventory, child, below, place.below(child, _line(entries, child)), (*above, name))
                _adopt(inventory, group, child, place)


def _adopt(inventory: AnsibleInventory, group: InventoryGroup, child: str, place: Origin) -> None:
    if child in group.children:
        return
    if child == "all":
        raise _wrong(place.below(child), "`all` is a child group", "`all` above every group", "remove it here")
    if group.name == "ungrouped":
        raise _wrong(place.below(child), "`ungrouped` has a child group", "hosts without a group in it", "move it out")
    if group.name in inventory._below(child):
        raise _wrong(
            place.below(child),
            f"group {child!r} is below itself",
            "groups without a loop",
            "remove one of the references",
        )
    group.children.append(child)
    inventory.groups[child].parents.append(group.name)


def _read_group_vars(group: InventoryGroup, entries: Mapping[Any, Any], place: Origin) -> None:
    for name, variable in _variables(entries, place):
        if name == "ansible_group_priority":
            try:
                group.priority = int(variable.value)
            except (TypeError, ValueError):
                raise _wrong(variable.origin, f"found {variable.value!r}", "an integer", "write 10") from None
        else:
            group.variables[name] = variable


def _read_hosts(
    inventory: AnsibleInventory, group: InventoryGroup, pattern: object, variables: object, origin: Origin
) -> None:
    if not isinstance(pattern, str):
        raise _wrong(origin, f"the host name {pattern!r} is {_kind(pattern)}", "a text", "put it into quotes")
    try:
        names, port = expand(pattern)
    except BadPattern as wrong:
        raise _wrong(
            origin, f"the host name {pattern!r} {wrong}", "a name or a range", "write it as l40s-[0:3]"
        ) from None
    if variables is not None and not isinstance(variables, MarkedMapping):
        raise _wrong(
            origin, f"the host has {_kind(variables)}", "a mapping of its variables, or nothing", "write name: value"
        )
    for name in names:
        host = inventory.hosts.get(name)
        if host is None:
            host = inventory.hosts[name] = Host(name, origin)
            if port is not None:
                host.variables["ansible_port"] = Variable(port, origin)
        if name not in group.hosts:
            group.hosts.append(name)
        host.variables.update(_variables(variables or MarkedMapping(), origin))


def _variables(entries: Mapping[Any, Any], place: Origin) -> Iterator[tuple[str, Variable]]:
    for name, value in entries.items():
        origin = place.below(name, _line(entries, name))
        if not isinstance(name, str):
            raise _wrong(origin, f"the variable name {name!r} is {_kind(name)}", "a text", "put it into quotes")
        yield name, Variable(value, origin)


def _entries(content: object, place: Origin) -> Mapping[Any, Any]:
    """A section's mapping; a single text stands for one name without a body, as Ansible has it."""
    if isinstance(content, str):
        entries = MarkedMapping()
        entries[content] = None
        return entries
    if isinstance(content, MarkedMapping):
        return content
    raise _wrong(place, f"found {_kind(content)}", "a mapping", "end each name with a colon instead of a dash")


def refuse_shared_names(inventory: AnsibleInventory) -> None:
    """Raises InputError where one name is a host's and a group's: Ansible warns, and a pattern means both."""
    for name, host in inventory.hosts.items():
        if name in inventory.groups:
            raise _wrong(host.origin, f"{name!r} is both a host and a group", "two names", "rename one of them")


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
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir() and not path.suffix:
            yield from _vars_below(path)
        elif path.is_file() and path.suffix in _VARS_EXTENSIONS:
            yield path


def _read_vars(path: Path, shown: str) -> dict[str, Variable]:
    """Variables of one file. A wholly vaulted file is passed over: what it holds is not for us."""
    text = read_text(path, shown)
    if text.startswith(VAULT_HEADER):
        return {}
    data = parse_yaml(text, shown)
    if not data:
        return {}
    if not isinstance(data, MarkedMapping):
        raise InputError(f"contains {_kind(data)}; wanted a mapping of variables", where=shown, fix="write name: value")
    return dict(_variables(data, Origin(shown, 0, "")))


def _shown_beside(shown: str, inventory: Path, path: Path) -> str:
    return str(Path(shown).parent / path.relative_to(inventory.resolve().parent))


def _line(entries: Mapping[Any, Any], key: object) -> int:
    return entries.lines.get(key, 0) if isinstance(entries, MarkedMapping) else 0


def _wrong(origin: Origin, found: str, wanted: str, fix: str) -> InputError:
    return InputError(f"{found}; wanted {wanted}", where=str(origin), fix=fix)


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
    names = [""]
    at = 0
    for match in _RANGE.finditer(pattern):
        between = pattern[at : match.start()]
        items = _range_items(match[1])
        if len(names) * len(items) > MOST_HOSTS:
            raise BadPattern(f"expands to more than {MOST_HOSTS} hosts")
        names = [f"{name}{between}{item}" for name in names for item in items]
        at = match.end()
    rest = pattern[at:]
    names = [name + rest for name in names]
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
