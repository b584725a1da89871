"""The user's settings that decide how Ansible reads an inventory: environment first, else the one ansible.cfg.

As Ansible's documentation has it ("Ansible Configuration Settings"): $ANSIBLE_CONFIG, ./ansible.cfg unless everybody
may write to the directory, ~/.ansible.cfg, /etc/ansible/ansible.cfg; the first that exists is the only one.
"""

from __future__ import annotations

import configparser
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
