"""Ansible's own commands, called for what only Ansible can read: its other inventory formats, templates, vaults.

Ansible is called, never imported (it is GPL), and it takes the user's settings: ansible.cfg and environment decide
which inventory plugins there are and where a vault's password comes from.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.loading.marked_yaml import Vaulted
from orchestrator.model.errors import InputError

TIMEOUT_S = 120.0
"""For one command; an inventory plugin may ask a cloud."""

_RESULT = re.compile(r"^(?P<host>\S+) \| (?P<end>SUCCESS|CHANGED|FAILED!|UNREACHABLE!) => (?=\{)", re.MULTILINE)
_ERROR = re.compile(r"^(?:\[ERROR\]:|ERROR!)\s*(?P<words>.*(?:\n(?!\s*$|\[).*)*)", re.MULTILINE)
_PARSING = re.compile(r"Failed to parse \S+ with '?(?P<plugin>[\w.]+)'? plugin: (?P<why>.+)")
_NO_SECRET = re.compile(
    r"vault secrets? (?:was |were )?(?:not )?found|Decryption failed|no vault secrets", re.IGNORECASE
)
_VAULT_FIX = "let Ansible know the vault's password: export ANSIBLE_VAULT_PASSWORD_FILE=FILE"


class CannotEvaluate(Exception):
    """Ansible found no value; the message is Ansible's."""


def listing(path: Path) -> dict[str, Any]:
    """`ansible-inventory --list`: {group: {hosts: [...], children: [...]}, _meta: {hostvars: {host: {...}}}}.

    Encrypted values are `Vaulted`, templates the text of the template. Raises InputError with Ansible's own words; one
    source of a directory that cannot be read is an error.
    """
    done = _run("ansible-inventory", path, "--list")
    if done.returncode != 0:
        raise _unreadable(path, done.stderr, f"ansible-inventory -i {shlex.quote(str(path))} --list")
    document: dict[str, Any] = json.loads(done.stdout, object_hook=_value)
    return document


def hosts_in_order(path: Path, group: str) -> tuple[str, ...]:
    """A group's hosts as `ansible GROUP --list-hosts` gives them: their order is the node rank."""
    done = _run("ansible", path, group, "--list-hosts")
    if done.returncode != 0:
        raise _unreadable(path, done.stderr, f"ansible {shlex.quote(group)} -i {shlex.quote(str(path))} --list-hosts")
    lines = done.stdout.splitlines()
    first = next(
        (number for number, line in enumerate(lines, 1) if re.fullmatch(r"\s*hosts \(\d+\):", line)), len(lines)
    )
    return tuple(line.strip() for line in lines[first:] if line.strip())


def values(
    path: Path, hosts: Collection[str], names: Sequence[str]
) -> Mapping[str, Mapping[str, Any] | CannotEvaluate]:
    """What these variables stand for on each host: templates evaluated, vaults opened; no host is contacted.

    A host where that fails has the failure. Raises InputError where Ansible gives no answer at all.
    """
    asked = json.dumps({"msg": {name: "{{ %s }}" % name for name in names}})  # noqa: UP031 - braces of Jinja
    done = _run("ansible", path, ",".join([*hosts, ""]), "-m", "ansible.builtin.debug", "-a", asked)
    found: dict[str, Mapping[str, Any] | CannotEvaluate] = {}
    for match in _RESULT.finditer(done.stdout):
        result, _ = json.JSONDecoder(object_hook=_value).raw_decode(done.stdout, match.end())
        good = match["end"] in ("SUCCESS", "CHANGED")
        found[match["host"]] = result["msg"] if good else CannotEvaluate(_one_line(result.get("msg")))
    if set(hosts) - set(found):
        raise _unreadable(path, done.stderr, f"ansible-inventory -i {shlex.quote(str(path))} --list")
    return found


def vault_fix(words: str) -> str:
    """What to do where these words of Ansible's speak of a vault's password; else ''."""
    return _VAULT_FIX if _NO_SECRET.search(words) else ""


def _run(command: str, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command beside our interpreter, without prompts and colours."""
    with tempfile.TemporaryDirectory(prefix="l40s-inventory-") as folder:
        environment = os.environ | {
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_ANY_ERRORS_FATAL": "0",
            "ANSIBLE_DEPRECATION_WARNINGS": "0",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "1",
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "0",
            "ANSIBLE_LOCAL_TEMP": folder,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_VERBOSITY": "0",
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


def _unreadable(path: Path, said: str, command: str) -> InputError:
    """With Ansible's words: the error, and why no plugin could parse the source."""
    error = _ERROR.search(said)
    words = _one_line(error["words"] if error else said.strip()[-300:] or "it says nothing")
    reasons = {match["plugin"]: match["why"].rstrip(".") for match in _PARSING.finditer(said)}
    why = "; ".join(f"{plugin}: {reason}" for plugin, reason in reasons.items() if plugin != "auto")
    fix = vault_fix(said) or f"fix what it names; try `{command}`"
    return InputError(f"Ansible cannot read it: {words}{f' ({why[:600]})' if why else ''}", where=str(path), fix=fix)


def _one_line(words: object) -> str:
    text = " ".join(str(words).split())
    return text.rpartition("Error while resolving value for 'msg': ")[2][:400]


def _value(found: dict[str, Any]) -> Any:
    """JSON as Ansible writes it, back to values."""
    if "__ansible_vault" in found:
        return Vaulted()
    return found.get("__ansible_unsafe", found)


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
    found: dict[str, str] = {}
    for name, (section, key) in _READING.items():
        if os.environ.get(name):
            found[name] = os.environ[name]
        elif value := config.get(section, key, fallback="").strip():
            found[name] = ":".join(_path(part, folder) for part in value.split(":")) if name in _PATHS else value
    return found


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
