"""An inventory in any of Ansible's forms: plain YAML by our own reader, which is quick, all else by Ansible's commands.

Ansible is called, never imported (it is GPL), and it takes the user's settings: ansible.cfg and environment decide
which inventory plugins there are and where a vault's password comes from. As Ansible's documentation has it ("Ansible
Configuration Settings") that is $ANSIBLE_CONFIG, ./ansible.cfg unless everybody may write to the directory,
~/.ansible.cfg, /etc/ansible/ansible.cfg; the first that exists is the only one.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from orchestrator.loading.resources import read_regular
from orchestrator.loading.which import load_config
from orchestrator.loading.yaml_fields import Vaulted
from orchestrator.model.per_node import collected
from orchestrator.protocol.errors import InputError

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
    source = _listed(path, _listed_by_ansible(path))
    refuse_shared_names(source)
    groups = [name for group in ranked if group in source.groups for name in source.groups[group].children or [group]]
    with ThreadPoolExecutor() as pool:
        orders = pool.map(lambda group: _hosts_in_order(path, group), groups)
        source.orders.update(zip(groups, orders, strict=True))
    return source


def evaluated(source: AnsibleInventory, hosts: Collection[str], names: Collection[str]) -> dict[str, Values]:
    """The variables of these hosts, with the values that Ansible gives to templates and vaulted values of these names.

    Raises InputError at the variable for which Ansible finds no value, or, with nothing evaluated, at one with a lookup
    where the operator's config.yml forbids them.
    """
    variables_of: dict[str, Values] = {host: source.variables_of(host) for host in hosts}
    config = load_config()
    if not config.lookups:
        _refuse_lookups(variables_of, str(config.path))
    wanted = collected(
        (tuple(name for name in names if name in variables and _for_ansible(variables[name].value)), host)
        for host, variables in variables_of.items()
        if _PLAIN_NAME.fullmatch(host)
    )
    wanted.pop((), None)
    for unknown, alike in wanted.items():
        for host, values in _evaluate(source.path, alike, unknown).items():
            if isinstance(values, str):
                raise _no_value(source, host, unknown, values)
            # `default(omit)` leaves one out
            known = {name: Variable(values.get(name), variables_of[host][name].origin) for name in unknown}
            variables_of[host] = {**variables_of[host], **known}
    return variables_of


def _only_ansible_reads(path: Path) -> bool:
    if path.is_dir():
        return True
    try:
        _, text = read_regular(path)
        return (
            (os.access(path, os.X_OK) and text.startswith(b"#!"))
            or text.startswith(VAULT_HEADER.encode())
            or _PLUGIN.search(text) is not None
            or _is_ini(text)
            or (knows_a_vault_password() and _vaulted_files(path.resolve().parent))
        )
    except OSError:
        return False  # our own reader says why


def _is_ini(text: bytes) -> bool:
    """Ansible's other format begins with hosts, or with a section that YAML would take for a list."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    return any(_INI_SECTION.fullmatch(line) and any(lines[number:]) for number, line in enumerate(lines, 1))


def _vaulted_files(beside: Path) -> bool:
    """Whether group_vars/ or host_vars/ have a file that is entirely encrypted."""
    files = (path for folder in ("group_vars", "host_vars") for path in (beside / folder).rglob("*") if path.is_file())
    return any(path.read_bytes().startswith(VAULT_HEADER.encode()) for path in files)


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
    for child in [child for group in source.groups.values() for child in group.children]:  # Ansible lists no empty ones
        source.groups.setdefault(child, InventoryGroup(child, Origin(shown, 0, child)))
    return source


def _for_ansible(value: object) -> bool:
    return any(
        isinstance(leaf, Vaulted) or (isinstance(leaf, str) and _TEMPLATE.search(leaf)) for leaf in _leaves(value)
    )


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (key, *_leaves(inner))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _refuse_lookups(values_of: Mapping[str, Values], config: str) -> None:
    """All variables, as a template of one that we read may name any other."""
    for host, variables in values_of.items():
        for variable in variables.values():
            if any(isinstance(leaf, str) and _LOOKUP.search(leaf) for leaf in _leaves(variable.value)):
                raise InputError(
                    f"its template uses a lookup on {host}, which {config} forbids",
                    where=str(variable.origin),
                    fix=f"write the value itself, or allow lookups: `lookups: true` in {config}",
                )


def _no_value(source: AnsibleInventory, host: str, names: Collection[str], failure: str) -> InputError:
    """At the one of the names that has none."""
    alone = ((name, _evaluate(source.path, [host], [name])[host]) for name in names if len(names) > 1)
    name, failure = next(
        ((name, reason) for name, reason in alone if isinstance(reason, str)), (next(iter(names)), failure)
    )
    fix = _vault_fix(failure) or "define what the template uses, or write the value itself"
    where = str(source.variables_of(host)[name].origin)
    return InputError(f"Ansible finds no value for it on {host}: {failure}", where=where, fix=fix)


TIMEOUT_S = 120.0
"""For one command; an inventory plugin may ask a cloud."""

_RESULT = re.compile(r"^(?P<host>\S+) \| (?P<end>SUCCESS|CHANGED|FAILED!|UNREACHABLE!) => (?=\{)", re.MULTILINE)
_ERROR = re.compile(r"^(?:\[ERROR\]:|ERROR!)\s*(?P<words>.*(?:\n(?!\s*$|\[).*)*)", re.MULTILINE)
_PARSING = re.compile(r"Failed to parse \S+ with '?(?P<plugin>[\w.]+)'? plugin: (?P<why>.+)")
_NO_SECRET = re.compile(r"(?i)vault secrets? (?:was |were )?(?:not )?found|Decryption failed|no vault secrets")
_OFF = (
    "ANY_ERRORS_FATAL",
    "ASK_PASS",
    "ASK_VAULT_PASS",
    "BECOME_ASK_PASS",
    "DEBUG",
    "DEPRECATION_WARNINGS",
    "FORCE_COLOR",
    "LOAD_CALLBACK_PLUGINS",
    "NO_LOG",
    "VERBOSITY",
)
_VAULT_FIX = "let Ansible know the vault's password: export ANSIBLE_VAULT_PASSWORD_FILE=FILE"


def _listed_by_ansible(path: Path) -> dict[str, Any]:
    """`ansible-inventory --list`: {group: {hosts: [...], children: [...]}, _meta: {hostvars: {host: {...}}}}.

    Encrypted values are `Vaulted`, templates the text of the template. Raises InputError with Ansible's own words; one
    source of a directory that cannot be read is an error.
    """
    done = _run("ansible-inventory", path, "--list")
    if done.returncode != 0:
        raise _unreadable(path, done.stderr, f"ansible-inventory -i {shlex.quote(str(path))} --list")
    document: dict[str, Any] = json.loads(done.stdout, object_hook=_value)
    return document


def _hosts_in_order(path: Path, group: str) -> tuple[str, ...]:
    """A group's hosts as `ansible GROUP --list-hosts` gives them: their order is the node rank."""
    done = _run("ansible", path, group, "--list-hosts")
    if done.returncode != 0:
        raise _unreadable(path, done.stderr, f"ansible {shlex.quote(group)} -i {shlex.quote(str(path))} --list-hosts")
    listed = re.split(r"(?m)^\s*hosts \(\d+\):$", done.stdout, maxsplit=1)[1:]
    return tuple(line.strip() for line in "".join(listed).splitlines() if line.strip())


def _evaluate(path: Path, hosts: Collection[str], names: Sequence[str]) -> Mapping[str, Mapping[str, Any] | str]:
    """What these variables stand for on each host: templates evaluated, vaults opened; no host is contacted.

    A host where that fails has Ansible's words instead. Raises InputError where Ansible gives no answer at all.
    """
    asked = json.dumps({"msg": {name: "{{ %s }}" % name for name in names}})  # noqa: UP031 - braces of Jinja
    done = _run("ansible", path, ",".join([*hosts, ""]), "-m", "ansible.builtin.debug", "-a", asked)
    answers: dict[str, Mapping[str, Any] | str] = {}
    for match in _RESULT.finditer(done.stdout):
        result, _ = json.JSONDecoder(object_hook=_value).raw_decode(done.stdout, match.end())
        good = match["end"] in ("SUCCESS", "CHANGED")
        answers[match["host"]] = result["msg"] if good else _one_line(result.get("msg"))
    if set(hosts) - set(answers):
        raise _unreadable(path, done.stderr, f"ansible-inventory -i {shlex.quote(str(path))} --list")
    return answers


def _vault_fix(words: str) -> str:
    """What to do where these words of Ansible's speak of a vault's password; else ''."""
    return _VAULT_FIX if _NO_SECRET.search(words) else ""


def _run(command: str, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command beside our interpreter, without prompts and colours."""
    with tempfile.TemporaryDirectory(prefix="l40s-inventory-") as folder:
        environment = os.environ | {
            **{f"ANSIBLE_{name}": "0" for name in _OFF},
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
            "ANSIBLE_LOCAL_TEMP": folder,
            "ANSIBLE_NOCOLOR": "1",
        }
        try:
            return subprocess.run(
                [str(Path(sys.executable).with_name(command)), *words[:1], "-i", str(path), *words[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            what, fix = f"{command} did not answer within {TIMEOUT_S:.0f} s", f"try `{command} -i {path} --list`"
        except OSError as error:
            what, fix = f"{command} cannot be started: {error.strerror or error}", "pip install ansible-core"
        raise InputError(what, where=str(path), fix=fix)


def _unreadable(path: Path, output: str, command: str) -> InputError:
    """With Ansible's words: the error, and why no plugin could parse the source."""
    error = _ERROR.search(output)
    words = _one_line(error["words"] if error else output.strip()[-300:] or "it says nothing")
    reasons = {match["plugin"]: match["why"].rstrip(".") for match in _PARSING.finditer(output)}
    why = "; ".join(f"{plugin}: {reason}" for plugin, reason in reasons.items() if plugin != "auto")
    fix = _vault_fix(output) or f"fix what it names; try `{command}`"
    return InputError(f"Ansible cannot read it: {words}{f' ({why[:600]})' if why else ''}", where=str(path), fix=fix)


def _one_line(words: object) -> str:
    return " ".join(str(words).split()).rpartition("Error while resolving value for 'msg': ")[2][:400]


def _value(parsed: dict[str, Any]) -> Any:
    """JSON as Ansible writes it, back to values."""
    return Vaulted() if "__ansible_vault" in parsed else parsed.get("__ansible_unsafe", parsed)


_VAULT = {
    "ANSIBLE_VAULT_PASSWORD_FILE": ("defaults", "vault_password_file"),
    "ANSIBLE_VAULT_IDENTITY_LIST": ("defaults", "vault_identity_list"),
    "ANSIBLE_VAULT_IDENTITY": ("defaults", "vault_identity"),
}
_READING = {
    **_VAULT,
    "ANSIBLE_INVENTORY_ENABLED": ("inventory", "enable_plugins"),
    "ANSIBLE_INVENTORY_PLUGINS": ("defaults", "inventory_plugins"),
    "ANSIBLE_COLLECTIONS_PATH": ("defaults", "collections_path"),
}
_PATHS = ("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_INVENTORY_PLUGINS", "ANSIBLE_COLLECTIONS_PATH")
"""Relative ones count from the folder of the file that they stand in."""


def reading_settings() -> dict[str, str]:
    """Those settings as environment variables: what makes another run of Ansible read the same inventory equally."""
    config, folder = _config()
    settings: dict[str, str] = {}
    for name, (section, key) in _READING.items():
        if os.environ.get(name):
            settings[name] = os.environ[name]
        elif value := config.get(section, key, fallback="").strip():
            settings[name] = ":".join(_path(part, folder) for part in value.split(":")) if name in _PATHS else value
    return settings


def knows_a_vault_password() -> bool:
    """Whether Ansible is configured with a vault's password."""
    return not reading_settings().keys().isdisjoint(_VAULT)


def _config() -> tuple[configparser.ConfigParser, Path]:
    config = configparser.ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=(";",))
    for path in _candidates():
        if path.is_file():
            try:
                config.read_string(path.read_text(encoding="utf-8"), str(path))
            except (OSError, UnicodeDecodeError, configparser.Error):
                break  # Ansible itself will say so
            return config, path.absolute().parent
    return configparser.ConfigParser(), Path()


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("ANSIBLE_CONFIG"):
        path = Path(named).expanduser()
        yield path / "ansible.cfg" if path.is_dir() else path
    if not Path.cwd().stat().st_mode & stat.S_IWOTH:
        yield Path("ansible.cfg")
    yield Path("~/.ansible.cfg").expanduser()
    yield Path("/etc/ansible/ansible.cfg")


def _path(text: str, folder: Path) -> str:
    return str(folder / Path(os.path.expandvars(text)).expanduser())
