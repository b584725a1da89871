"""Connects to a node: TCP, jump hosts or a proxy command, key exchange, host key, our own key; notices dead ones. Host
keys can be looked at without a login, and remembered.

All of it has one deadline. Each kind of failure has its own message.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import paramiko

from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.remote import ssh_keys
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.refusals import OF_A_LOGIN, fix_of, last_words
from orchestrator.remote.ssh_keys import KnownKey, candidates, fingerprint
from orchestrator.remote.ssh_target import SshTarget, target_of

DEAD_LINK_S = 10
"""A direct connection whose peer acknowledges nothing for this long is lost: TCP_USER_TIMEOUT of tcp(7)."""
SILENT_SSHD_S = 15.0
"""A machine that acknowledges packets, and whose sshd answers nothing for this long, hangs: no verb there will end."""
_KEEPALIVE_IDLE_S = 3
"""Silence before the kernel asks whether the peer is there, so that an idle connection is judged too."""

_STRANGERS = 6
"""Connections to one server that have not logged in yet. sshd begins to drop them at 10 (MaxStartups 10:30:100)."""
_LOOK_S = 0.5
_AGAIN_AFTER_S = (0.2, 0.6)
_AGAIN_WHERE_WE_CAME_IN_S = (*_AGAIN_AFTER_S, 1.2, 2.4)
"""An SSH server that has let us in and now drops us is a busy one; anything else may be none at all."""

_turns: dict[tuple[str, int], threading.BoundedSemaphore] = {}
_let_us_in: set[tuple[str, int]] = set()

logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # its threads write tracebacks; we say it in words


@dataclass
class SshConnection:
    """An authenticated transport and what it runs through; `close` takes all of it down."""

    transport: paramiko.Transport
    _closers: list[Callable[[], object]] = field(default_factory=list)

    def close(self) -> None:
        """Close the innermost transport first. Returns at once, also on a dead link."""
        _close_all(self._closers)


def open_way(target: SshTarget, deadline_s: float) -> SshConnection:
    """Connect and log in. Raises Unreachable, HostKeyError, InputError."""
    closers = list[Callable[[], object]]()
    through = _through((*target.jumps, target), Deadline(deadline_s), closers)
    assert through is not None
    way = SshConnection(through, closers)
    patience_s = SILENT_SSHD_S if target.direct else PATIENCE_S
    closers.append(heartbeat(way.transport, way.close, patience_s))
    return way


def shown_key(target: SshTarget, deadline_s: float) -> tuple[str, bytes]:
    """The host key that a server shows, as (kind, key), whether we know it or not; without a login.

    Jump hosts in front of it must be known. Raises as open_way does.
    """
    deadline, closers = Deadline(deadline_s), list[Callable[[], object]]()
    through = _through(target.jumps, deadline, closers)
    with _in_words(target, deadline, closers):
        transport = _transport(target, through, deadline, closers)
        shown = _exchange(transport, deadline, ssh_keys.known_keys(target))
    _close_all(closers)
    return shown


def _through(
    hops: Iterable[SshTarget], deadline: Deadline, closers: list[Callable[[], object]]
) -> paramiko.Transport | None:
    """Logged in at one after the other, each through the one before; None where there is none."""
    through: paramiko.Transport | None = None
    for hop in hops:
        with _in_words(hop, deadline, closers), _turn(hop, deadline):
            through = _logged_in(hop, through, deadline, closers)
    return through


@dataclass(frozen=True, slots=True)
class ShownKey:
    """kind: as OpenSSH calls it. key: in base64. known: by known_hosts, or to be recorded at the first login anyway"""

    kind: str
    key: str
    fingerprint: str
    known: bool


def scan_host_keys(nodes: Iterable[NodeSpec], *, deadline_s: float) -> PerNode[ShownKey]:
    """Each node's key; a node that does not answer, or whose key is not the one that we know, is a failure."""
    nodes = list(nodes)
    with ThreadPoolExecutor(max_workers=len(nodes) or 1) as pool:
        waited = {node.name: pool.submit(_scan, node, deadline_s) for node in nodes}
    keys = {name: waiting.result() for name, waiting in waited.items()}
    failures = {name: key for name, key in keys.items() if isinstance(key, DeployError)}
    return PerNode({name: key for name, key in keys.items() if isinstance(key, ShownKey)}, failures)


def remember_host_keys(nodes: Iterable[NodeSpec], keys: Mapping[str, ShownKey]) -> str:
    """Append the keys that are not known to the first known_hosts file; its path, '' where nothing was to be done."""
    file = ""
    for node in nodes:
        key = keys.get(node.name)
        if key is not None and not key.known:
            target = target_of(node)
            ssh_keys.record(target, key.kind, key.key)
            file = str(target.known_hosts[0]) if target.known_hosts else ""
    return file


def _scan(spec: NodeSpec, deadline_s: float) -> ShownKey | DeployError:
    try:
        target = target_of(spec)
        kind, key = shown_key(target, deadline_s)
        encoded = base64.b64encode(key).decode("ascii")
        known = ssh_keys.known_keys(target)
        if not (new := all(line.marker and line.key != encoded for line in known)):
            ssh_keys.check(target, kind, key, known)
        return ShownKey(kind, encoded, fingerprint(key), known=target.accept_new or not new)
    except DeployError as failure:
        return failure


@contextlib.contextmanager
def _in_words(hop: SshTarget, deadline: Deadline, closers: list[Callable[[], object]]) -> Iterator[None]:
    """A failure at this server ends all that was opened, and is told in words."""
    try:
        yield
    except BaseException as fault:
        _close_all(closers)
        if isinstance(fault, DeadlinePassed):
            raise _silent(hop, deadline) from None
        if isinstance(fault, (paramiko.SSHException, EOFError, OSError)):
            raise _no_ssh(hop, fault) from None
        raise


def _logged_in(
    hop: SshTarget, through: paramiko.Transport | None, deadline: Deadline, closers: list[Callable[[], object]]
) -> paramiko.Transport:
    """A busy sshd still counts connections that have logged in a moment ago, and drops a new one before its banner:
    that is tried again."""
    tries = 0
    while True:
        tries += 1
        mine: list[Callable[[], object]] = []
        try:
            transport = _transport(hop, through, deadline, mine)
            _prove(hop, transport, deadline)
        except (paramiko.SSHException, EOFError, ConnectionError) as fault:
            pauses = _AGAIN_WHERE_WE_CAME_IN_S if (hop.host, hop.port) in _let_us_in else _AGAIN_AFTER_S
            left = deadline.left()
            if tries > len(pauses) or not _dropped(fault) or (left is not None and left <= pauses[tries - 1]):
                raise
            _close_all(mine)
            time.sleep(pauses[tries - 1])
        else:
            _let_us_in.add((hop.host, hop.port))
            return transport
        finally:
            closers += mine  # closing one twice does no harm


def _dropped(fault: Exception) -> bool:
    return isinstance(fault, (EOFError, ConnectionResetError, BrokenPipeError)) or "banner" in str(fault)


@contextlib.contextmanager
def _turn(hop: SshTarget, deadline: Deadline) -> Iterator[None]:
    """A place among the few that may log in at one server at a time: a gate before 32 nodes would drop some."""
    turns = _turns.setdefault((hop.host, hop.port), threading.BoundedSemaphore(_STRANGERS))
    if not turns.acquire(timeout=deadline.left()):
        raise DeadlinePassed
    try:
        yield
    finally:
        turns.release()


def _close_all(closers: list[Callable[[], object]]) -> None:
    for close in reversed(closers):
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            close()


def _transport(
    hop: SshTarget, through: paramiko.Transport | None, deadline: Deadline, closers: list[Callable[[], object]]
) -> _SshTransport:
    if through is not None:
        stream: socket.socket | paramiko.Channel = _channel_to(hop, through, deadline)
    elif hop.proxy_command is not None:
        stream = _proxy(hop.proxy_command, closers)
    else:
        stream = _tcp(hop, deadline)
    transport = _SshTransport(stream)
    transport.daemon = True
    closers.append(lambda: _shut(transport, stream))
    return transport


class _SshTransport(paramiko.Transport):
    """Keeps what the server says when it ends the connection, and ends completely if that is lost while a channel is
    being opened.

    paramiko 5.1's `Transport.open_channel` lists the channel before it gives it the transport that `Channel._unlink`
    uses. Without this, the reading thread's traceback is on the screen and the opener waits until its deadline.
    """

    parting_words = b""

    @property
    def said(self) -> bytes:
        """The server's last banner, which is how PAM's messages come, and why it ended the connection."""
        banner = getattr(self.auth_handler, "banner", None) or b""
        return bytes(banner) + b"\n" + self.parting_words

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.parting_words = message.get_string()

    def run(self) -> None:
        try:
            super().run()
        except AttributeError:
            self.close()


def _shut(transport: paramiko.Transport, stream: socket.socket | paramiko.Channel) -> None:
    """Waking the reader first makes close return at once instead of at paramiko's next look."""
    if isinstance(stream, socket.socket):
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
    transport.close()
    stream.close()


def _tcp(hop: SshTarget, deadline: Deadline) -> socket.socket:
    fault: OSError | None = None
    for family, address in _addresses(hop, deadline):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(deadline.left())
            connection.connect(address)
            _tune(connection)
        except OSError as error:
            connection.close()
            fault = error
        else:
            return connection
    assert fault is not None
    raise _no_tcp(hop, fault, deadline)


def _addresses(hop: SshTarget, deadline: Deadline) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        entries = deadline.of(lambda: socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise Unreachable(
            f"the name {hop.host!r} has no address: {getattr(error, 'strerror', None) or error}",
            where=hop.name,
            fix="write its address as ansible_host, or correct the name service",
        ) from None
    return [(entry[0], entry[4]) for entry in entries]


def _tune(connection: socket.socket) -> None:
    """No waiting to fill packets (paramiko writes small ones); a dead link ends the connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_LINK_S * 1000)


def _channel_to(hop: SshTarget, through: paramiko.Transport, deadline: Deadline) -> paramiko.Channel:
    try:
        with deadline.breaking(through.close):
            return through.open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=deadline.left())
    except paramiko.ChannelException as refused:
        raise Unreachable(
            f"the jump host cannot reach {hop.host}:{hop.port}: {refused.text}",
            where=hop.name,
            fix="check the address and port from the jump host, and AllowTcpForwarding in its sshd_config",
        ) from None
    except paramiko.SSHException as error:
        deadline.left()
        raise Unreachable(
            f"the jump host closed the connection: {error}", where=hop.name, fix="check the login: ssh -v"
        ) from None


def _proxy(command: str, closers: list[Callable[[], object]]) -> socket.socket:
    """A ProxyCommand's stdin and stdout as a socket. It is the user's own text, run by a shell as OpenSSH does."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        process.terminate()
        threading.Thread(target=process.wait, daemon=True).start()

    closers.append(end)
    return ours


def _prove(hop: SshTarget, transport: _SshTransport, deadline: Deadline) -> None:
    """Key exchange, their key, our key."""
    known = ssh_keys.known_keys(hop)
    kind, key = _exchange(transport, deadline, known)
    ssh_keys.check(hop, kind, key, known)
    _log_in(hop, transport, deadline)


def _exchange(transport: paramiko.Transport, deadline: Deadline, known: Sequence[KnownKey]) -> tuple[str, bytes]:
    """The server's host key, as (kind, key), of a kind that we know where there is one."""
    security = transport.get_security_options()
    security.key_types = ssh_keys.preferred(security.key_types, known)
    if (budget := deadline.left()) is not None:
        transport.banner_timeout = transport.handshake_timeout = budget
    done = threading.Event()
    transport.start_client(event=done)
    deadline.wait(done)
    if not transport.is_active():
        deadline.left()
        raise transport.get_exception() or EOFError("the connection was closed")
    key = transport.get_remote_server_key()
    return key.get_name(), key.asbytes()


def _log_in(hop: SshTarget, transport: _SshTransport, deadline: Deadline) -> None:
    tried: list[str] = []
    with contextlib.closing(candidates(hop, deadline)) as keys:
        for key, origin in keys:
            tried.append(origin)
            answered = threading.Event()
            transport.auth_publickey(hop.user, key, event=answered)
            while not answered.wait(min(deadline.left() or _LOOK_S, _LOOK_S)) and transport.is_active():
                pass  # a transport that ends just now may set no event
            if transport.is_authenticated():
                return
            if not transport.is_active():
                raise _ended_login(hop, transport.said)
    raise _refused_key(hop, tried, transport.get_exception())


def _silent(hop: SshTarget, deadline: Deadline) -> Unreachable:
    return Unreachable(
        f"{_place(hop)} does not answer within {deadline.seconds or 0:g} s",
        where=hop.name,
        fix=f"check that the machine is running; {_by_hand(hop)}",
    )


def _no_tcp(hop: SshTarget, fault: OSError, deadline: Deadline) -> DeployError:
    if isinstance(fault, TimeoutError):
        return _silent(hop, deadline)
    if isinstance(fault, ConnectionRefusedError):
        return Unreachable(
            f"{_place(hop)} refuses the connection; nothing listens on that port",
            where=hop.name,
            fix="start sshd there, or correct ansible_host and ansible_port",
        )
    return Unreachable(
        f"{_place(hop)} cannot be reached: {fault.strerror or fault}",
        where=hop.name,
        fix=f"check the route and the address; {_by_hand(hop)}",
    )


def _no_ssh(hop: SshTarget, fault: Exception | None) -> Unreachable:
    if isinstance(fault, paramiko.ssh_exception.IncompatiblePeer):
        what, fix = f"no common algorithm with its sshd: {fault}", "update the older side"
    elif isinstance(fault, (OSError, EOFError)) or "banner" in str(fault) or "protocol version" in str(fault):
        what = "the server closes the connection, or is not an SSH server"
        fix = f"correct ansible_port, or check its sshd (MaxStartups, hosts.deny); {_by_hand(hop)}"
    else:
        what, fix = f"the key exchange failed: {fault or 'connection closed'}", _by_hand(hop)
    return Unreachable(f"{_place(hop)}: {what}", where=hop.name, fix=fix)


def _ended_login(hop: SshTarget, output: bytes) -> Unreachable:
    """Not about the key: sshd answers a refused one, and goes on."""
    words, reach = last_words(output), Reach(host=hop.host, user=hop.user)
    see_why = f"see why on the node: sudo journalctl -t sshd -n 20; {_by_hand(hop)}"
    return Unreachable(
        f"{_place(hop)}: its sshd ended the login of {hop.user}: {words or 'it did not say why'}",
        where=hop.name,
        fix=fix_of(words, OF_A_LOGIN, see_why, reach),
    )


def _refused_key(hop: SshTarget, tried: list[str], fault: Exception | None) -> Unreachable:
    if not tried:
        return Unreachable(
            f"no SSH key is available to log in as {hop.user} at {_place(hop)}",
            where=hop.name,
            fix="set ansible_ssh_private_key_file (for a key with a passphrase, run `ssh-add` first)",
        )
    keys = ", ".join(dict.fromkeys(tried))
    if isinstance(fault, paramiko.BadAuthenticationType):
        what = f"its sshd accepts no keys (it offers {', '.join(fault.allowed_types)})"
        fix = "set `PubkeyAuthentication yes` in its sshd_config"
    elif isinstance(fault, paramiko.ssh_exception.PartialAuthentication):
        what = f"its sshd requires more than a key ({', '.join(fault.allowed_types)})"
        fix = "set `AuthenticationMethods publickey` in its sshd_config for this user"
    else:
        what = f"it does not accept {keys} for the user {hop.user}"
        fix = f"run ssh-copy-id, or correct ansible_user and ansible_ssh_private_key_file; {_by_hand(hop)}"
    return Unreachable(f"{_place(hop)}: {what}", where=hop.name, fix=fix)


def _place(hop: SshTarget) -> str:
    return f"{hop.host}:{hop.port}"


def _by_hand(hop: SshTarget) -> str:
    return f"test it: ssh -v -p {hop.port} {shlex.quote(f'{hop.user}@{hop.host}')}"


INTERVAL_S = 3.0
PATIENCE_S = 10.0
"""No answer to one heartbeat for this long: the connection is lost."""


def heartbeat(transport: paramiko.Transport, lost: Callable[[], object], patience_s: float) -> Callable[[], None]:
    """Ask the far sshd for an answer again and again; paramiko's own set_keepalive never looks for one.

    Returns what stops it; a beat in flight ends with its transport.
    """
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(INTERVAL_S) and transport.is_active():
            limit = threading.Timer(patience_s, lost)
            limit.daemon = True
            limit.start()
            try:
                transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return
            finally:
                limit.cancel()

    threading.Thread(target=beat, name="ssh heartbeat", daemon=True).start()
    return stopped.set
