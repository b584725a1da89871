"""Servers that end a connection while somebody logs in: that is no refused key, and their words are shown."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
import pytest
from tests.unit.remote.conftest import Sshd, keygen

from orchestrator.protocol.errors import Unreachable
from orchestrator.remote.ssh_session import open_session

BOOTING = (
    '"System is booting up. Unprivileged users are not permitted to log in yet. Please come back later. For technical '
    'details, see pam_nologin(8)."\n'
)
DISCONNECT, BY_APPLICATION = 1, 2


@dataclass
class EndingServer(paramiko.ServerInterface):
    """Says this beside its first answer, or with its goodbye, and closes the connection instead of an answer."""

    transport: paramiko.Transport
    banner: str
    goodbye: str

    def get_banner(self) -> tuple[str | None, str | None]:
        return self.banner or None, "en"

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self.goodbye:
            message = paramiko.Message()
            message.add_byte(bytes([DISCONNECT]))
            message.add_int(BY_APPLICATION)
            message.add_string(self.goodbye)
            message.add_string("")
            self.transport._send_message(message)  # type: ignore[attr-defined]
        self.transport.close()
        raise EOFError


@contextlib.contextmanager
def ending(sshd: Sshd, folder: Path, banner: str, goodbye: str) -> Iterator[dict[str, Any]]:
    """Such a server, as changes to an inventory's host."""
    keygen(folder / "host")
    key = paramiko.Ed25519Key(filename=str(folder / "host"))
    with socket.create_server((sshd.address, 0)) as listener:
        port = listener.getsockname()[1]

        def live() -> None:
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                while True:
                    transport = paramiko.Transport(listener.accept()[0])
                    transport.add_server_key(key)
                    transport.start_server(server=EndingServer(transport, banner, goodbye))

        threading.Thread(target=live, daemon=True).start()
        known = folder / "known_hosts"
        known.write_text(f"[{sshd.address}]:{port} {key.get_name()} {key.get_base64()}\n")
        yield {"port": port, "known_hosts_file": str(known), "user": "deploy"}


@pytest.mark.parametrize(
    ("banner", "goodbye", "what", "fix"),
    [
        pytest.param(BOOTING, "", "ended the login of deploy: .System is booting up", "has started", id="nologin"),
        pytest.param("x" * 200_000 + "\n", "", r"ended the login of deploy: \.\.\.xxx", "journalctl", id="200 KB"),
        pytest.param(
            "", "Too many authentication failures", "ended the login.*: Too many auth", "IdentitiesOnly", id="tries"
        ),
        pytest.param("", "", "ended the login of deploy: it did not say why", "journalctl", id="silent"),
    ],
)
def test_the_end_of_a_login_is_told_in_the_servers_words(
    sshd: Sshd, tmp_path: Path, banner: str, goodbye: str, what: str, fix: str
) -> None:
    with ending(sshd, tmp_path, banner, goodbye) as changes, pytest.raises(Unreachable, match=what) as caught:
        open_session(sshd.spec(**changes), deadline_s=20)
    assert fix in caught.value.fix and not re.search("ssh-copy-id|does not accept", str(caught.value.fix))
