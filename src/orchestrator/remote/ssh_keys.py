"""Keys of both ends: those that we may prove ourselves with, in the order in which they are tried; and host keys as
OpenSSH keeps them: which line of known_hosts speaks of a host, what it says, what is recorded."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import shlex
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import paramiko

from orchestrator.protocol.errors import HostKeyError, InputError
from orchestrator.remote.deadline import Deadline
from orchestrator.remote.ssh_target import SshTarget

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


def candidates(target: SshTarget, deadline: Deadline) -> Generator[tuple[paramiko.PKey, str], None, None]:
    """Keys, each with the words for it in a message: named key files first, then, unless IdentitiesOnly forbids it, the
    agent's; the default key files only where none was named. Raises InputError for a key file of the inventory that
    cannot be used."""
    locked = False
    for number, path in enumerate(target.key_files):
        key = _load(path, of=target.name if target.key_required and number == 0 else None)
        locked = locked or (key is None and path.exists())
        if key is not None:
            yield key, str(path)
    if target.own_keys or locked:
        yield from _agent_keys(deadline, None if target.own_keys else target.key_files)
    if not target.key_files:
        yield from _default_keys()


def _default_keys() -> Iterator[tuple[paramiko.PKey, str]]:
    for name in _DEFAULT_KEYS:
        path = Path("~/.ssh").expanduser() / name
        if (key := _load(path, of=None)) is not None:
            yield key, str(path)


@lru_cache(maxsize=64)
def _load(path: Path, *, of: str | None) -> paramiko.PKey | None:
    """A private key, with its certificate if one is beside it. None where it is absent or needs a
    passphrase (the agent may hold it).

    of: the node whose inventory names this key, so that it must be there. A relative path counts from the working
    directory, as for ssh, which gets Ansible's variable as it is (ansible/plugins/connection/ssh.py).
    """
    shown = path.absolute()
    fix = "name the private key file in ansible_ssh_private_key_file"
    if not path.is_absolute():
        fix += "; a relative path counts from the directory in which the command runs"
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        if of is not None:
            raise InputError(f"the SSH key {shown} cannot be read: {error.strerror}", where=of, fix=fix) from None
    except (TypeError, paramiko.PasswordRequiredException):  # what its parsers raise for a missing passphrase
        pass
    except Exception:  # half a dozen classes of two libraries say that a file is no key
        if of is not None:
            raise InputError(f"{shown} is not a readable SSH private key", where=of, fix=fix) from None
    return None


def _agent_keys(deadline: Deadline, only: tuple[Path, ...] | None) -> Iterator[tuple[paramiko.PKey, str]]:
    """Keys of the agent at $SSH_AUTH_SOCK; `only`: those whose public half is beside a named key file."""
    try:
        agent = deadline.of(paramiko.Agent)
    except (paramiko.SSHException, OSError):
        return
    wanted = None if only is None else {text for path in only for text in _public_half(path)}
    try:
        for key in agent.get_keys():
            if wanted is None or base64.b64encode(key.asbytes()).decode("ascii") in wanted:
                yield key, "the SSH agent"
    finally:
        agent.close()


def _public_half(path: Path) -> Iterator[str]:
    try:
        fields = path.with_name(path.name + ".pub").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return
    yield from fields[1:2]


_MARKERS = ("@cert-authority", "@revoked")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line that speaks of the host we asked for. key: base64 as in the file."""

    marker: str
    kind: str
    key: str
    file: str
    line: int


def keys_for(name: str, text: str, file: str) -> Iterator[KnownKey]:
    """Every line of a known_hosts file that matches a name; lines that are not understood are passed over."""
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0] in _MARKERS else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        if _matches(fields[0], name):
            yield KnownKey(marker, fields[1], fields[2], file, number)


def fingerprint(key: bytes) -> str:
    """A public key's fingerprint as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode("ascii").rstrip("=")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|"):
        return _is_hash_of(patterns, name)
    matched = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        if _is_like(name, pattern[negated:]):
            if negated:
                return False
            matched = True
    return matched


def _is_like(name: str, pattern: str) -> bool:
    """OpenSSH knows * and ? only; brackets are part of `[host]:port`."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _is_hash_of(hashed: str, name: str) -> bool:
    """`|1|salt|hash`, both base64: the hash is HMAC-SHA1 of the name keyed by the salt."""
    parts = hashed.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, wanted = base64.b64decode(parts[2], validate=True), base64.b64decode(parts[3], validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)


_writing = threading.Lock()


def known_keys(target: SshTarget) -> tuple[KnownKey, ...]:
    """The entries of the known_hosts files for a target; missing files have none."""
    known: list[KnownKey] = []
    for path in target.known_hosts:
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            known.extend(keys_for(target.host_key_name, text, str(path)))
    return tuple(known)


def preferred(kinds: Sequence[str], known: Sequence[KnownKey]) -> tuple[str, ...]:
    """Host key algorithms, those of keys that we know first, so that the server shows one of them."""
    have = {key.kind for key in known if not key.marker}
    if "ssh-rsa" in have:
        have |= {"rsa-sha2-512", "rsa-sha2-256"}
    return tuple(sorted(kinds, key=lambda kind: kind not in have))


def check(target: SshTarget, kind: str, key: bytes, known: Sequence[KnownKey]) -> None:
    """Pass when the key is known (or recorded now, where the target accepts new ones). Raises HostKeyError."""
    encoded = base64.b64encode(key).decode("ascii")
    if any(line.marker == "@revoked" and line.key == encoded for line in known):
        raise HostKeyError(
            f"its host key {fingerprint(key)} is marked @revoked", where=_where(target), fix="do not connect to it"
        )
    plain = [line for line in known if not line.marker]
    if any(line.kind == kind and line.key == encoded for line in plain):
        return
    if plain:
        raise _changed(target, kind, key, plain[0])
    if target.accept_new:
        record(target, kind, encoded)
        return
    raise _unknown(target, kind, key, known)


def _changed(target: SshTarget, kind: str, key: bytes, line: KnownKey) -> HostKeyError:
    return HostKeyError(
        f"its host key has changed: it shows {kind} {fingerprint(key)}, "
        f"{line.file}:{line.line} has another ({line.kind}). The machine was reinstalled, or it is not the "
        "one you expect",
        where=_where(target),
        fix=f"once you know why: ssh-keygen -R {shlex.quote(target.host_key_name)} -f {shlex.quote(line.file)}, "
        f"then {_keyscan(target)}",
    )


def _unknown(target: SshTarget, kind: str, key: bytes, known: Sequence[KnownKey]) -> HostKeyError:
    authority = " (found a @cert-authority line; host certificates are not supported)" if known else ""
    return HostKeyError(
        f"its host key is unknown: it shows {kind} {fingerprint(key)}{authority}",
        where=_where(target),
        fix=f"compare the fingerprint on the node's console (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub), "
        f"then {_keyscan(target)}",
    )


def _keyscan(target: SshTarget) -> str:
    file = target.known_hosts[0] if target.known_hosts else Path("~/.ssh/known_hosts")
    if not target.direct:
        return f"log in once: ssh -o UserKnownHostsFile={shlex.quote(str(file))} {shlex.quote(target.host)}"
    port = "" if target.port == 22 else f"-p {target.port} "
    return f"ssh-keyscan {port}{shlex.quote(target.host)} >> {shlex.quote(str(file))}"


def record(target: SshTarget, kind: str, encoded: str) -> None:
    """Append the key (in base64), as OpenSSH does; where the file cannot be written it is used for this time only."""
    if not target.known_hosts:
        return
    path = target.known_hosts[0]
    line = f"{target.host_key_name} {kind} {encoded}\n"
    with _writing, contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="ascii") as file:
            file.write(line if not file.tell() or os.pread(descriptor, 1, file.tell() - 1) == b"\n" else f"\n{line}")


def _where(target: SshTarget) -> str:
    return f"{target.name} ({target.host}:{target.port})"
