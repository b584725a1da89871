"""An inventory in any of Ansible's forms: plain YAML by our own reader, which is quick, all else by Ansible."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.loading import ansible_command
from orchestrator.loading.ansible_command import knows_a_vault_password
from orchestrator.loading.ansible_yaml import (
    VAULT_HEADER,
    AnsibleInventory,
    Host,
    InventoryGroup,
    Origin,
    Variable,
    read_ansible_inventory,
    refuse_shared_names,
)
from orchestrator.loading.marked_yaml import Vaulted, read_regular
from orchestrator.loading.which import load_config
from orchestrator.model.errors import InputError

_INI_SECTION = re.compile(r"\[[\w.-]+(:(children|vars|hosts))?\]\s*([#;].*)?")
_PLUGIN = re.compile(rb"^plugin\s*:", re.MULTILINE)
_TEMPLATE = re.compile(r"\{[{%#]")
_LOOKUP = re.compile(r"\{[{%].*\b(lookup|query|q)\b", re.DOTALL)
"""Any use of the functions' names inside a template, called or not: `{% set f = lookup %}` is one."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")
"""A host's name that means only itself where Ansible takes a pattern."""

Values = Mapping[str, Variable]


@dataclass
class ListedInventory(AnsibleInventory):
    """What Ansible has read and merged itself: a host's variables are all that it has."""

    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def hosts_of(self, group: str) -> tuple[str, ...]:
        """As `ansible GROUP --list-hosts` gives them."""
        return self.orders.get(group) or super().hosts_of(group)

    def variables_of(self, host: str) -> Values:
        """All variables of a host."""
        return self.hosts[host].variables


def read_source(path: Path, ranked: Iterable[str]) -> AnsibleInventory:
    """Read an inventory: a YAML or INI file, a directory, a plugin's configuration, or a program that prints one.

    ranked: groups whose child groups' hosts have an order that counts, and groups whose own have
    Raises InputError with the file, the place inside it and what is wanted.
    """
    if not _only_ansible_reads(path):
        return read_ansible_inventory(path)
    source = _listed(path, ansible_command.listing(path))
    refuse_shared_names(source)
    groups = [name for group in ranked if group in source.groups for name in source.groups[group].children or [group]]
    with ThreadPoolExecutor() as pool:
        orders = pool.map(lambda group: ansible_command.hosts_in_order(path, group), groups)
        source.orders.update(zip(groups, orders, strict=True))
    return source


def evaluated(source: AnsibleInventory, hosts: Collection[str], names: Collection[str]) -> dict[str, Values]:
    """The variables of these hosts, with the values that Ansible gives to templates and vaulted values of these names.

    Raises InputError at the variable for which Ansible finds no value, or, with nothing evaluated, at one with a lookup
    where the operator's config.yml forbids them.
    """
    found: dict[str, Values] = {host: source.variables_of(host) for host in hosts}
    config = load_config()
    if not config.lookups:
        _refuse_lookups(found, str(config.path))
    wanted: dict[tuple[str, ...], list[str]] = {}
    for host, variables in found.items():
        unknown = tuple(name for name in names if name in variables and _for_ansible(variables[name].value))
        if unknown and _PLAIN_NAME.fullmatch(host):
            wanted.setdefault(unknown, []).append(host)
    for unknown, alike in wanted.items():
        for host, values in ansible_command.values(source.path, alike, unknown).items():
            if isinstance(values, ansible_command.CannotEvaluate):
                raise _no_value(source, host, unknown, values)
            known = {name: Variable(values[name], found[host][name].origin) for name in unknown}
            found[host] = {**found[host], **known}
    return found


def _only_ansible_reads(path: Path) -> bool:
    if path.is_dir():
        return True
    try:
        _, text = read_regular(path)
    except OSError:
        return False  # our own reader says why
    return (
        (os.access(path, os.X_OK) and text.startswith(b"#!"))
        or text.startswith(VAULT_HEADER.encode())
        or _PLUGIN.search(text) is not None
        or _is_ini(text)
        or (knows_a_vault_password() and _vaulted_files(path.resolve().parent))
    )


def _is_ini(text: bytes) -> bool:
    """Ansible's other format begins with hosts, or with a section that YAML would take for a list."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    return any(_INI_SECTION.fullmatch(line) and any(lines[number:]) for number, line in enumerate(lines, 1))


def _vaulted_files(beside: Path) -> bool:
    """Whether group_vars/ or host_vars/ have a file that is entirely encrypted."""
    for folder in ("group_vars", "host_vars"):
        for path in (beside / folder).rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    if file.read(len(VAULT_HEADER)) == VAULT_HEADER.encode():
                        return True
    return False


def _listed(path: Path, document: Mapping[str, Any]) -> ListedInventory:
    shown = str(path)
    source = ListedInventory(path, shown)
    hostvars = document.get("_meta", {}).get("hostvars", {})
    for name, body in document.items():
        if name == "_meta":
            continue
        group = source.groups[name] = InventoryGroup(name, Origin(shown, 0, name))
        group.hosts, group.children = list(body.get("hosts", ())), list(body.get("children", ()))
        for host in group.hosts:
            place = Origin(shown, 0, host)
            known = {key: Variable(value, place.below(key)) for key, value in hostvars.get(host, {}).items()}
            source.hosts.setdefault(host, Host(host, place, known))
    for child in [child for group in list(source.groups.values()) for child in group.children]:
        source.groups.setdefault(
            child, InventoryGroup(child, Origin(shown, 0, child))
        )  # Ansible leaves out what is empty
    return source


def _for_ansible(value: object) -> bool:
    return any(isinstance(one, Vaulted) or (isinstance(one, str) and _TEMPLATE.search(one)) for one in _leaves(value))


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (key, *_leaves(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _refuse_lookups(found: Mapping[str, Values], config: str) -> None:
    """All variables, as a template of one that we read may name any other."""
    for host, variables in found.items():
        for variable in variables.values():
            if any(isinstance(one, str) and _LOOKUP.search(one) for one in _leaves(variable.value)):
                raise InputError(
                    f"its template uses a lookup on {host}, which {config} forbids",
                    where=str(variable.origin),
                    fix=f"write the value itself, or allow lookups: `lookups: true` in {config}",
                )


def _no_value(
    source: AnsibleInventory, host: str, names: Collection[str], failure: ansible_command.CannotEvaluate
) -> InputError:
    """At the one of the names that has none."""
    variables = source.variables_of(host)
    where = variables[next(iter(names))].origin
    for name in names if len(names) > 1 else ():
        found = ansible_command.values(source.path, [host], [name])[host]
        if isinstance(found, ansible_command.CannotEvaluate):
            where, failure = variables[name].origin, found
            break
    fix = ansible_command.vault_fix(str(failure)) or "define what the template uses, or write the value itself"
    return InputError(f"Ansible finds no value for it on {host}: {failure}", where=str(where), fix=fix)
