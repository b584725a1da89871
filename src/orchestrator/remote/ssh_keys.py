"""The keys that a connection may prove itself with, in the order in which they are tried."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path

import paramiko

from orchestrator.model.errors import InputError
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
        for name in _DEFAULT_KEYS:
            path = Path("~/.ssh").expanduser() / name
            key = _load(path, of=None)
            if key is not None:
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
