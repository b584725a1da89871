"""Is the server that answers the one we know? OpenSSH's rules, without a question to the user."""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from orchestrator.model.errors import HostKeyError
from orchestrator.remote.known_hosts import KnownKey, fingerprint, keys_for
from orchestrator.remote.ssh_target import SshTarget

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
