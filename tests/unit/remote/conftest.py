"""Real SSH servers on loopback addresses, run by the user who runs the tests; each test has its own keys."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.model.inventory import NodeSpec, Reach

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Sshd:
    """One server: where it listens, its files, its process."""

    folder: Path
    address: str
    port: int
    client_key: Path
    process: subprocess.Popen[bytes]
    cache: Path
    known_hosts: Path = field(init=False)

    def __post_init__(self) -> None:
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(self.known_line())

    def known_line(self) -> str:
        """The server's correct line for a known_hosts file."""
        kind, key, *_ = (self.folder / "host_key.pub").read_text().split()
        return f"[{self.address}]:{self.port} {kind} {key}\n"

    def spec(self, name: str = "node0", **changes: Any) -> NodeSpec:
        """A node as in an inventory, with the address and options to reach it."""
        reach = Reach(
            host=self.address,
            port=self.port,
            user=getpass.getuser(),
            key_file=str(self.client_key),
            known_hosts_file=str(self.known_hosts),
            python=sys.executable,  # not what a shell's start-up files put first
        )
        return NodeSpec(name=name, gang="gang0", node_rank=0, reach=replace(reach, **changes))

    def sessions(self) -> list[int]:
        """Process ids of the server's children: one or more for each connection."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def kill_sessions(self) -> None:
        """End every connection abruptly, like a dying node."""
        for pid in _with_children(self.sessions()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze_sessions(self) -> None:
        """Stop every connection's processes; the kernel keeps acknowledging."""
        for pid in _with_children(self.sessions()):
            os.kill(pid, signal.SIGSTOP)

    def stop(self) -> None:
        self.kill_sessions()
        self.process.kill()
        self.process.wait()


def _with_children(pids: list[int]) -> list[int]:
    found = list(pids)
    for pid in found:
        with contextlib.suppress(OSError):
            found.extend(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with client keys: `client`, `other`, and `locked`, which has a passphrase."""
    folder = tmp_path_factory.mktemp("keys")
    for name, phrase in (("client", ""), ("other", ""), ("locked", "secret")):
        keygen(folder / name, phrase)
    return folder


def keygen(path: Path, phrase: str = "") -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-C", "test", "-f", str(path)], check=True, timeout=20
    )


@pytest.fixture(scope="session")
def start_sshd(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts a server; lines go into its configuration, environment (NAME=value ...) into its sessions."""
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    started: list[Sshd] = []

    def start(*lines: str, environment: str = "") -> Sshd:
        number = len(started) + 1
        server = _start(tmp_path_factory.mktemp("sshd"), keys / "client", number, lines, environment)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


def _start(folder: Path, client_key: Path, number: int, lines: tuple[str, ...], environment: str = "") -> Sshd:
    keygen(folder / "host_key")
    address = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}.{number}"
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    cache = folder / "cache"
    shutil.copy(f"{client_key}.pub", folder / "authorized_keys")
    config = folder / "sshd_config"
    config.write_text(
        "\n".join(
            [
                *lines,
                f"ListenAddress {address}:{port}",
                f"HostKey {folder}/host_key",
                f"AuthorizedKeysFile {folder}/authorized_keys",
                f"SetEnv XDG_CACHE_HOME={cache} SHLVL=2 {environment}",  # at level 1 bash would read ~/.bashrc
                "PidFile none",
                "UsePAM no",
                "StrictModes no",
                "PasswordAuthentication no",
                "PermitRootLogin prohibit-password",
                "",
            ]
        )
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(config)], stderr=log, stdin=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or _answers(address, port))
    assert process.poll() is None, (folder / "log").read_text()
    return Sshd(folder, address, port, client_key, process, cache)


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


@pytest.fixture(scope="session")
def sshd(start_sshd: Callable[..., Sshd]) -> Sshd:
    """A server that tests share; a test that breaks its connections starts its own."""
    return start_sshd()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No config, key, agent or cache of the user is used."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


AS_SUDO = 'while [ "$1" != -- ]; do shift; done; shift;'
"""Passes over sudo's own words, in a script for fake_sudo."""


def fake_sudo(folder: Path, script: str) -> str:
    """A line for sshd_config that puts our sudo first on the PATH."""
    (folder / "sudo").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "sudo").chmod(0o755)
    return f"PATH={folder}:/usr/bin:/bin"
