"""Host keys as OpenSSH keeps them: which line of known_hosts speaks of a host, what it says, what is recorded."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.model.errors import HostKeyError
from orchestrator.remote.ssh_target import SshTarget

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
    found = False
    for pattern in patterns.lower().split(","):
        negated = pattern.startswith("!")
        if _is_like(name, pattern[negated:]):
            if negated:
                return False
            found = True
    return found


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
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="ascii") as file:
            file.write(line)


def _where(target: SshTarget) -> str:
    return f"{target.name} ({target.host}:{target.port})"
