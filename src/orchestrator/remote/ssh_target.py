"""Where an SSH connection goes and how it proves itself: the inventory's words, then ~/.ssh/config's.

Precedence as with Ansible over OpenSSH: ansible_port, ansible_user and the key file, then the options of
ansible_ssh_common_args and ansible_ssh_extra_args, then the config files; the first value found counts.
The config files, ~/.ssh/config and /etc/ssh/ssh_config with `Include` followed, are looked up under ansible_host, as
`ssh` is called with it.
"""

from __future__ import annotations

import getpass
import glob
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import paramiko

from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import InputError

_MOST_JUMPS = 8
_JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """One SSH server on the path to a node, or the node itself.

    name:          how messages call it
    host_key_name: the name to look up in known_hosts
    accept_new:    an unknown host key is recorded and used (StrictHostKeyChecking no or accept-new)
    key_files:     identity files, in order
    key_required:  the first of them was named in the inventory, so it must exist
    own_keys:      whether the agent's and the user's default keys may be tried
    jumps:         hosts to pass through, nearest first
    """

    name: str
    host: str
    port: int
    user: str
    host_key_name: str
    known_hosts: tuple[Path, ...]
    accept_new: bool
    key_files: tuple[Path, ...]
    key_required: bool
    own_keys: bool
    jumps: tuple[SshTarget, ...] = ()
    proxy_command: str | None = None

    @property
    def direct(self) -> bool:
        """Whether our own TCP connection ends at this server."""
        return not self.jumps and self.proxy_command is None


def target_of(spec: NodeSpec) -> SshTarget:
    """The path to a node. Raises InputError for options that contradict each other or cannot be read."""
    reach = spec.reach
    given: dict[str, Any] = {}
    identities = [reach.key_file] if reach.key_file else []
    if reach.port is not None:
        given["port"] = str(reach.port)
    if reach.user is not None:
        given["user"] = reach.user
    for name, value in reach.ssh_options:
        if name == "identityfile":
            identities.append(value)
        else:
            given.setdefault(name, value)
    if reach.known_hosts_file:
        given["userknownhostsfile"] = reach.known_hosts_file
    if identities:
        given["identityfile"] = identities
    return _target(spec.name, reach.host, given, key_required=reach.key_file is not None, depth=0)


def _target(name: str, alias: str, given: Mapping[str, Any], *, key_required: bool, depth: int) -> SshTarget:
    if depth > _MOST_JUMPS:
        raise InputError(
            f"more than {_MOST_JUMPS} jump hosts in front of it", where=name, fix="remove the loop in ProxyJump"
        )
    config = given.get("configfile")
    file = str(Path(config).expanduser()) if config else None
    first = tuple((name, given[name]) for name in ("hostname", "port", "user") if name in given)
    configured = look_up(alias, file, first)
    options = {**configured, **given}
    options["identityfile"] = [*given.get("identityfile", ()), *configured.get("identityfile", ())]
    port = _port(options.get("port", "22"), name)
    user = str(options.get("user") or getpass.getuser())
    host = str(options.get("hostname") or alias)
    tokens = {"%": "%", "h": host, "n": alias, "p": str(port), "r": user, "d": str(Path.home())}
    key_files = tuple(_path(value, tokens) for value in options["identityfile"] if value.lower() != "none")
    jumps, proxy = _way(name, given, configured, file, depth)
    alias_for_key = options.get("hostkeyalias")
    return SshTarget(
        name=name,
        host=host,
        port=port,
        user=user,
        host_key_name=str(alias_for_key).lower() if alias_for_key else host_key_name(host, port),
        known_hosts=_known_hosts(options, tokens),
        accept_new=str(options.get("stricthostkeychecking", "ask")).lower() in ("no", "off", "accept-new"),
        key_files=key_files,
        key_required=key_required,
        own_keys=str(options.get("identitiesonly", "no")).lower() != "yes",
        jumps=jumps,
        proxy_command=_expand(proxy, tokens) if proxy else None,
    )


def _way(
    name: str, given: Mapping[str, Any], configured: Mapping[str, Any], file: str | None, depth: int
) -> tuple[tuple[SshTarget, ...], str | None]:
    """Jump hosts or proxy command; what the inventory says beats what the config files say."""
    for options in (given, configured):
        jump, proxy = options.get("proxyjump"), options.get("proxycommand")
        if jump and proxy and options is given:
            raise InputError("has both ProxyJump and ProxyCommand", where=name, fix="keep only one of them")
        if jump:
            if str(jump).lower() == "none":
                return (), None
            return _jumps(name, str(jump), file, depth), None
        if "proxycommand" in options:
            none = proxy is None or str(proxy).lower() == "none"
            return (), None if none else str(proxy)
    return (), None


def _jumps(name: str, text: str, file: str | None, depth: int) -> tuple[SshTarget, ...]:
    """The hosts of a ProxyJump, nearest first, each with its own section of the config files (`ssh -J a,b`
    goes through a to b, and a's own ProxyJump counts)."""
    hops: list[SshTarget] = []
    for word in text.split(","):
        if (match := _JUMP.fullmatch(word.strip())) is None:
            raise InputError(
                f"found ProxyJump {text!r}; wanted [user@]host[:port],...",
                where=name,
                fix="correct it in the SSH config",
            )
        given = {key: value for key, value in match.groupdict().items() if value is not None and key != "host"}
        if file is not None:
            given["configfile"] = file
        host = match["host"].strip("[]")
        hop = _target(f"jump host {host}", host, given, key_required=False, depth=depth + 1)
        hops.extend([*hop.jumps, hop] if not hops else [hop])
        if hop.proxy_command is not None and len(hops) > 1:
            raise InputError(
                f"the jump host {host} has a ProxyCommand behind another jump host, which is not supported",
                where=name,
                fix="use ProxyJump for it",
            )
    return tuple(hops)


def _known_hosts(options: Mapping[str, Any], tokens: Mapping[str, str]) -> tuple[Path, ...]:
    user = str(options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"))
    system = str(options.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"))
    names: Sequence[str] = [name for text in (user, system) for name in shlex.split(text)]
    return tuple(_path(name, tokens) for name in names if name.lower() != "none")


def _port(text: object, name: str) -> int:
    if str(text).isdigit() and 0 < int(str(text)[:8]) < 65536:
        return int(str(text))
    raise InputError(f"found the SSH port {text!r}; wanted 1 to 65535", where=name, fix="correct Port or ansible_port")


def _path(text: str, tokens: Mapping[str, str]) -> Path:
    return Path(_expand(text, tokens)).expanduser()


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    """The %-tokens of ssh_config(5) that a path or a proxy command can hold; others stay as they are."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def host_key_name(host: str, port: int) -> str:
    """The name under which OpenSSH keeps a host's key."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


SYSTEM_FILE = "/etc/ssh/ssh_config"
_DEEPEST_INCLUDE = 16  # as OpenSSH: READCONF_MAX_DEPTH in readconf.c


def look_up(host: str, file: str | None, given: tuple[tuple[str, str], ...] = ()) -> Mapping[str, Any]:
    """Options for a host by lower-case name; identityfile is a list.

    file: read in place of the user's and the system's file, as `ssh -F` has it ('none' reads nothing)
    said: options that are set already; they win, and `%p` or `%r` in the files mean their values
    Raises InputError for a file that cannot be parsed, and for a named one that cannot be read.
    """
    if file is not None and file.lower() == "none":
        return {}
    files = (file,) if file is not None else (str(Path("~/.ssh/config").expanduser()), SYSTEM_FILE)
    if file is not None and not Path(file).is_file():
        raise InputError("is not a readable file", where=file, fix="correct the -F argument of ansible_ssh_common_args")
    try:
        return dict(_parsed(files, given).lookup(host))
    except (paramiko.SSHException, ValueError, KeyError) as error:
        raise InputError(
            f"cannot be followed for the host {host!r}: {error}",
            where=" and ".join(files),
            fix=f"run `ssh -G {host}`, which reads the same files",
        ) from None


@lru_cache(maxsize=64)
def _parsed(files: tuple[str, ...], given: tuple[tuple[str, str], ...]) -> paramiko.SSHConfig:
    first = "\n".join(f"{name} {value}" for name, value in given)
    text = "\nHost *\n".join((first, *(_text(Path(file), Path(file).parent, 0) for file in files)))
    try:
        return paramiko.SSHConfig.from_text(text)
    except (paramiko.SSHException, ValueError) as error:
        raise InputError(
            f"is not a valid ssh_config: {error}",
            where=" and ".join(files),
            fix="run `ssh -G localhost` to see the line",
        ) from None


def _text(file: Path, home: Path, depth: int) -> str:
    """A file's text with included files in place. After an include the enclosing Host or Match goes on.

    home: folder that relative includes are below: ~/.ssh for the user's file, /etc/ssh for the system's
    """
    if depth > _DEEPEST_INCLUDE:
        raise InputError("includes itself", where=str(file), fix="remove the Include line that closes the loop")
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    section = ""
    parts = []
    for line in text.splitlines():
        words = line.strip().replace("=", " ", 1).split()
        keyword = words[0].lower() if words else ""
        if keyword in ("host", "match"):
            section = line
        if keyword != "include":
            parts.append(line)
            continue
        paths = [path for pattern in words[1:] for path in _included(pattern, home, file)]
        included = [_text(Path(path), home, depth + 1) for path in paths]
        _refuse_sections_below(section, included, file)
        parts.extend([*included, section or "Host *"])
    return "\n".join(parts)


def _included(pattern: str, home: Path, file: Path) -> list[str]:
    try:
        return sorted(glob.glob(str(home / Path(pattern.strip('"')).expanduser())))  # noqa: PTH207 - absolute too
    except (RuntimeError, ValueError, OSError) as wrong:
        raise InputError(
            f"`Include {pattern}` can't be followed: {wrong}",
            where=str(file),
            fix="use a user who exists on this machine",
        ) from None


def _refuse_sections_below(section: str, included: list[str], file: Path) -> None:
    """Inside a Host section, an included Host section would have to match both: we say so and stop."""
    if not section or section.split()[1:] == ["*"]:
        return
    for line in "\n".join(included).splitlines():
        if line.strip().lower().startswith(("host ", "match ")):
            raise InputError(
                f"includes `{line.strip()}` below `{section.strip()}`, which is not supported",
                where=str(file),
                fix="move the Include line above the first Host line",
            )
