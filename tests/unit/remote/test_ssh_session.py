"""Sessions over real sshds: commands, deadlines, lost connections, host keys, jump hosts."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import paramiko
import pytest
from tests.support.waiting import slack, until
from tests.unit.remote.conftest import AS_SUDO, fake_sudo

from orchestrator.protocol.errors import HostKeyError, InputError, NodeError, Unreachable
from orchestrator.remote import ssh_session, ssh_way
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.local import connect
from orchestrator.remote.ssh_session import open_session

from .conftest import Sshd

Start = Callable[..., Sshd]


def test_a_frozen_sshd_meets_the_deadline(start_sshd: Start) -> None:
    server = start_sshd()
    session = open_session(server.spec(), deadline_s=20)
    server.freeze_sessions()
    start = time.monotonic()
    with pytest.raises(Unreachable, match=r"within 0.5 s"):
        session.run("true", deadline_s=0.5)
    assert time.monotonic() - start < 5 * slack() and not session.alive


def test_a_lost_connection_is_unreachable_and_no_empty_answer(start_sshd: Start) -> None:
    server = start_sshd()
    session = open_session(server.spec(), deadline_s=20)
    marker = server.folder / "started"

    def kill_when_started() -> None:
        until(marker.exists)
        server.kill_sessions()

    killer = threading.Thread(target=kill_when_started)
    killer.start()
    with pytest.raises(Unreachable, match="connection was lost while"):
        session.run(f"touch {shlex.quote(str(marker))}; sleep 60", deadline_s=30)
    killer.join()
    assert not session.alive
    with pytest.raises(Unreachable, match="connection was lost"):
        session.run("true", deadline_s=5)


def test_closing_ends_what_runs(sshd: Sshd) -> None:
    session = open_session(sshd.spec(), deadline_s=20)
    lines = session.stream("echo x; sleep 60", deadline_s=None)
    assert next(lines) == b"x\n"
    session.close()
    with pytest.raises(Unreachable):
        next(lines)
    session.close()


def test_an_unknown_host_key_tells_its_fingerprint_and_a_fix_that_works(sshd: Sshd, tmp_path: Path) -> None:
    spec = sshd.spec(known_hosts_file=str(tmp_path / "kh"))
    listed = ["ssh-keygen", "-lf", str(sshd.folder / "host_key.pub")]
    sshd_line = subprocess.run(listed, capture_output=True, text=True, check=True, timeout=20).stdout
    with pytest.raises(HostKeyError, match="host key is unknown") as caught:
        connect(spec, deadline_s=20)
    assert sshd_line.split()[1] in caught.value.what
    subprocess.run(caught.value.fix.split("then ", 1)[1], shell=True, check=True, capture_output=True, timeout=20)
    connect(spec, deadline_s=20).close()


def test_a_changed_host_key_names_the_line_and_the_fix(sshd: Sshd, keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "kh"
    kind, key, *_ = (keys / "other.pub").read_text().split()
    file.write_text(f"# old\n[{sshd.address}]:{sshd.port} {kind} {key}\n")
    spec = sshd.spec(known_hosts_file=str(file), ssh_options=(("stricthostkeychecking", "no"),))
    with pytest.raises(HostKeyError, match=rf"has changed: .*{file}:2 has another") as caught:
        connect(spec, deadline_s=20)
    fix = caught.value.fix.split("why: ", 1)[1].replace(", then ", " && ")
    subprocess.run(fix, shell=True, check=True, capture_output=True, timeout=20)
    connect(spec, deadline_s=20).close()


def test_a_revoked_host_key_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "kh"
    file.write_text(sshd.known_line() + "@revoked " + sshd.known_line())
    with pytest.raises(HostKeyError, match="revoked"):
        connect(sshd.spec(known_hosts_file=str(file)), deadline_s=20)


def test_accept_new_records_the_key(sshd: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "new" / "kh"
    accepting = sshd.spec(known_hosts_file=str(file), ssh_options=(("stricthostkeychecking", "accept-new"),))
    connect(accepting, deadline_s=20).close()
    assert file.read_text() == sshd.known_line()
    file.write_text("# without an end of line")
    connect(accepting, deadline_s=20).close()
    connect(sshd.spec(known_hosts_file=str(file)), deadline_s=20).close()


def trickles(connection: socket.socket) -> None:
    """One byte every 0.1 s keeps each single read alive; the complete read must still time out."""
    while True:
        connection.sendall(b"x")
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("serve", "deadline_s", "words"),
    [
        pytest.param(lambda one: one.recv(1 << 16) and one.recv(1), 0.5, r"does not answer within 0.5 s", id="silent"),
        pytest.param(trickles, 1.0, "does not answer within 1 s", id="trickles"),
        pytest.param(lambda one: one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), 20.0, "not an SSH server", id="web"),
        pytest.param(lambda one: None, 20.0, "not an SSH server", id="closes"),
    ],
)
def test_what_is_no_ssh_server_is_told_in_time(
    sshd: Sshd, serve: Callable[[socket.socket], object], deadline_s: float, words: str
) -> None:
    with socket.create_server((sshd.address, 0)) as server:

        def live() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    serve(connection)

        thread = threading.Thread(target=live)
        thread.start()
        start = time.monotonic()
        with pytest.raises(Unreachable, match=words):
            connect(sshd.spec(port=server.getsockname()[1]), deadline_s=deadline_s)
        assert time.monotonic() - start < deadline_s + 5 * slack()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("reach", "words"),
    [
        pytest.param({"host": "no-such-node.invalid"}, "has no address", id="a name without an address"),
        pytest.param({"user": "nobody-here"}, "for the user nobody-here", id="an unknown user is a refused key"),
        pytest.param({"key_file": None}, "no SSH key is available", id="no key at all"),
        pytest.param({"ssh_options": (("proxycommand", "true"),)}, "closes the connection", id="a proxy that ends"),
    ],
)
def test_what_keeps_it_from_connecting_is_told(sshd: Sshd, reach: dict[str, Any], words: str) -> None:
    with pytest.raises(Unreachable, match=words):
        connect(sshd.spec(**reach), deadline_s=20)


@pytest.mark.parametrize(
    ("key", "words", "fix"),
    [
        pytest.param("other", r"does not accept .*/other for the user", "ansible_user", id="refused"),
        pytest.param("locked", "no SSH key is available", "ssh-add", id="a passphrase and no agent"),
    ],
)
def test_a_key_that_opens_nothing_is_told_with_the_way_out(
    sshd: Sshd, keys: Path, key: str, words: str, fix: str
) -> None:
    with pytest.raises(Unreachable, match=words) as caught:
        connect(sshd.spec(key_file=str(keys / key)), deadline_s=20)
    assert fix in caught.value.fix


@pytest.fixture
def agent(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An SSH agent that holds the keys `other` and `client`."""
    place = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
    try:
        add = ["ssh-add", "-q", str(keys / "other"), str(keys / "client")]
        end = time.monotonic() + 20
        while subprocess.run(add, capture_output=True, timeout=20, check=False).returncode:
            assert time.monotonic() < end
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("agent")
def test_the_agents_keys_are_tried(sshd: Sshd) -> None:
    connect(sshd.spec(key_file=None), deadline_s=20).close()
    options = (("identityfile", "/nonexistent"), ("identitiesonly", "yes"))
    with pytest.raises(Unreachable, match="no SSH key is available"):
        connect(sshd.spec(key_file=None, ssh_options=options), deadline_s=20)


@pytest.mark.usefixtures("agent")
def test_the_agent_holds_the_key_of_a_locked_file(sshd: Sshd, keys: Path, tmp_path: Path) -> None:
    """The file's public half selects one of the agent's keys, also with IdentitiesOnly."""
    locked = tmp_path / "mine"
    locked.write_bytes((keys / "locked").read_bytes())
    (tmp_path / "mine.pub").write_bytes((keys / "client.pub").read_bytes())
    spec = sshd.spec(key_file=str(locked), ssh_options=(("identitiesonly", "yes"),))
    connect(spec, deadline_s=20).close()


def test_the_default_key_is_taken_where_none_is_named(sshd: Sshd) -> None:
    folder = Path("~/.ssh").expanduser()
    folder.mkdir()
    (folder / "id_ed25519").write_bytes(sshd.client_key.read_bytes())
    connect(sshd.spec(key_file=None), deadline_s=20).close()


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("/nonexistent/key", "the SSH key /nonexistent/key cannot be read: No such file or directory"),
        ("keys/none", "the SSH key {folder}/keys/none cannot be read: No such file or directory"),
        ("text", "{folder}/text is not a readable SSH private key"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_named_with_the_directory_that_it_counts_from(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("not a key")
    with pytest.raises(InputError) as caught:
        connect(sshd.spec(key_file=key), deadline_s=20)
    assert (caught.value.where, caught.value.what) == ("node0", what.format(folder=tmp_path))
    assert ("the directory in which the command runs" in caught.value.fix) is (not key.startswith("/"))


def test_a_server_without_keys_is_told(start_sshd: Start) -> None:
    server = start_sshd("PubkeyAuthentication no", "KbdInteractiveAuthentication yes")
    with pytest.raises(Unreachable, match="accepts no keys"):
        connect(server.spec(), deadline_s=20)


def config(*servers: Sshd, proxy: str = "") -> str:
    """A config file, passed by -F, that defines the servers as hop0, hop1, ..."""
    path = Path("~/hops").expanduser()
    path.write_text(
        "".join(
            f"Host hop{number}\n HostName {server.address}\n Port {server.port}\n IdentityFile {server.client_key}\n"
            f" UserKnownHostsFile {server.known_hosts}\n"
            for number, server in enumerate(servers)
        )
    )
    return str(path)


def behind(*gates: Sshd) -> tuple[tuple[str, str], ...]:
    """SSH options that lead through these servers."""
    return ("configfile", config(*gates)), ("proxyjump", ",".join(f"hop{number}" for number in range(len(gates))))


@pytest.mark.parametrize("number", [1, 2])
def test_through_jump_hosts(sshd: Sshd, start_sshd: Start, number: int) -> None:
    gates = [start_sshd() for _ in range(number)]
    session = open_session(sshd.spec(ssh_options=behind(*gates)), deadline_s=30)
    assert session.run("echo through", deadline_s=20).out == b"through\n"
    assert all(gate.sessions() for gate in gates)
    session.close()
    assert not session.alive
    until(lambda: not any(gate.sessions() for gate in gates))


def test_many_nodes_behind_one_gate_that_admits_few_strangers(sshd: Sshd, start_sshd: Start) -> None:
    """sshd drops connections beyond MaxStartups that have not logged in yet (its default is 10:30:100)."""
    options = behind(start_sshd("MaxStartups 8:100:8"))
    with Fleet([sshd.spec(f"n{number}", ssh_options=options) for number in range(16)], connect_deadline_s=60) as fleet:
        done = fleet.on_every(lambda session: session.run("true", deadline_s=60).status)
    assert not done.failures
    assert len(done.values) == 16


@contextlib.contextmanager
def dropping(sshd: Sshd, drops: list[bool]) -> Iterator[int]:
    """A port in front of sshd: takes one of `drops` for each connection, and closes it at once or lets it through."""
    with contextlib.ExitStack() as ends:
        listener = ends.enter_context(socket.create_server((sshd.address, 0)))

        def carry(one: socket.socket, other: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := one.recv(65536):
                    other.sendall(data)
                other.shutdown(socket.SHUT_WR)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client = ends.enter_context(listener.accept()[0])
                    if drops.pop(0):
                        client.close()
                        continue
                    server = ends.enter_context(socket.create_connection((sshd.address, sshd.port)))
                    for way in ((client, server), (server, client)):
                        threading.Thread(target=carry, args=way, daemon=True).start()

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("known", [True, False])
def test_a_busy_sshd_is_asked_longer_where_it_has_let_us_in(
    sshd: Sshd, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both drop four connections in a row, like a gate that is slow to notice a login."""
    monkeypatch.setattr(ssh_way, "_AGAIN_AFTER_S", (0.01, 0.01))
    monkeypatch.setattr(ssh_way, "_AGAIN_WHERE_WE_CAME_IN_S", (0.01, 0.01, 0.01, 0.01))
    drops = [False] * known + [True] * 4 + [False] * 2
    with dropping(sshd, drops) as port:
        spec = sshd.spec(port=port, ssh_options=(("stricthostkeychecking", "no"),))
        if known:
            for _ in range(2):
                open_session(spec, deadline_s=20).close()
        else:
            with pytest.raises(Unreachable, match="closes the connection"):
                open_session(spec, deadline_s=20)
    assert len(drops) == (1 if known else 3)


@pytest.mark.parametrize("jumps", [False, True])
def test_a_lost_connection_ends_a_stream(sshd: Sshd, start_sshd: Start, jumps: bool) -> None:
    """The node's own, or that of the jump host before it."""
    cut = start_sshd()
    session = open_session(sshd.spec(ssh_options=behind(cut)) if jumps else cut.spec(), deadline_s=20)
    lines = session.stream("echo x; sleep 60", deadline_s=None)
    assert next(lines) == b"x\n"
    cut.kill_sessions()
    with pytest.raises(Unreachable, match="connection was lost"):
        next(lines)


@pytest.mark.parametrize(
    ("jumps", "words"), [(False, "refuses the connection; nothing listens"), (True, "jump host cannot reach")]
)
def test_a_port_where_nothing_listens_is_told(sshd: Sshd, start_sshd: Start, jumps: bool, words: str) -> None:
    options = behind(start_sshd()) if jumps else ()
    with socket.socket() as taken:
        taken.bind((sshd.address, 0))
        with pytest.raises(Unreachable, match=words) as caught:
            connect(sshd.spec(port=taken.getsockname()[1], ssh_options=options), deadline_s=20)
    assert not isinstance(caught.value, HostKeyError)
    assert caught.value.where == "node0"


def test_the_host_key_of_a_jump_host_is_checked(sshd: Sshd, start_sshd: Start) -> None:
    gate = start_sshd()
    gate.known_hosts.write_text("")
    with pytest.raises(HostKeyError, match="unknown") as caught:
        connect(sshd.spec(ssh_options=behind(gate)), deadline_s=20)
    assert caught.value.where.startswith("jump host hop0")


@pytest.mark.parametrize("jumps", [False, True])
def test_a_frozen_node_ends_a_command_before_its_deadline(
    sshd: Sshd, start_sshd: Start, monkeypatch: pytest.MonkeyPatch, jumps: bool
) -> None:
    """Its kernel, or the jump host, still acknowledges; a stop may take minutes, and nobody would answer it."""
    for name, seconds in (("INTERVAL_S", 0.05), ("SILENT_SSHD_S", 0.5), ("PATIENCE_S", 0.5)):
        monkeypatch.setattr(ssh_way, name, seconds)
    node = start_sshd()
    session = open_session(node.spec(ssh_options=behind(sshd) if jumps else ()), deadline_s=20)
    assert session.run("sleep 0.3; echo alive", deadline_s=20).out == b"alive\n"
    node.freeze_sessions()
    with pytest.raises(Unreachable, match="connection was lost"):
        session.run("true", deadline_s=600)


def test_through_a_proxy_command(sshd: Sshd) -> None:
    relay = (
        "import socket,sys,threading,shutil,os\n"
        "c=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n"
        "  while (d:=os.read(0,65536)): c.sendall(d)\n"
        "  c.shutdown(1)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while (d:=c.recv(65536)): os.write(1,d)\n"
    )
    script = Path("~/relay.py").expanduser()
    script.write_text(relay)
    proxy = f"{shlex.quote(sys.executable)} {script} %h %p"
    session = open_session(sshd.spec(ssh_options=(("proxycommand", proxy),)), deadline_s=20)
    assert session.run("echo through", deadline_s=20).out == b"through\n"
    session.close()
    assert not session.alive


def test_sudo_that_refuses_is_told(start_sshd: Start, tmp_path: Path) -> None:
    server = start_sshd(environment=fake_sudo(tmp_path, "echo 'sudo: a password is required' >&2; exit 1"))
    session = open_session(server.spec(become=True), deadline_s=20)
    with pytest.raises(NodeError, match="without a password: sudo: a password is required") as caught:
        session.run("true", deadline_s=20)
    assert "NOPASSWD" in caught.value.fix
    with pytest.raises(NodeError, match="without a password"):
        list(session.stream("true", deadline_s=20))
    session.close()


def test_become_runs_the_command_through_sudo(start_sshd: Start, tmp_path: Path) -> None:
    server = start_sshd(environment=fake_sudo(tmp_path, f'echo welcome; printf "%s\\n" "$*" >&2; {AS_SUDO} "$@"'))
    session = open_session(server.spec(become=True, become_user="l40s"), deadline_s=20)
    done = session.run(["echo", "a b"], deadline_s=20)
    assert done.out == b"a b\n"
    assert done.err.startswith(b"-n -H -u l40s -- /bin/sh -c printf")
    assert done.err.endswith(b"exec echo 'a b'\n")
    assert session.run("echo plain", deadline_s=20, become=False).out == b"plain\n"
    session.close()


def test_paramiko_says_nothing_by_itself(capfd: pytest.CaptureFixture[str], sshd: Sshd) -> None:
    session = open_session(sshd.spec(), deadline_s=20)
    with pytest.raises(Unreachable):
        session.run("sleep 60", deadline_s=0.2)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("paramiko").level > logging.CRITICAL


@pytest.mark.parametrize("ended", [EOFError(), OSError("Socket is closed"), paramiko.SSHException("ended")])
def test_what_is_left_of_a_command_on_a_connection_that_has_ended_is_closed_all_the_same(ended: Exception) -> None:
    """As after a minute's SIGSTOP, when the node has hung up: the command's own answer says that."""
    channel = mock.Mock(close=mock.Mock(side_effect=ended))
    ssh_session._SshCommand("node0", mock.Mock(), channel).close()
    channel.close.assert_called_once_with()
