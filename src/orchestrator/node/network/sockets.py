"""Where the leader link meets the network: how its connections are made."""

from __future__ import annotations

import errno
import select
import socket

from orchestrator.protocol.staging import Endpoint


class Sockets:
    """Connections of this machine."""

    def listen(self, at: Endpoint, backlog: int) -> socket.socket:
        """A listener. Raises OSError where there can be none."""
        listener = socket.socket(_family(at), socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((at.address, at.port))
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        return listener

    def begin_to_connect(self, to: Endpoint) -> tuple[socket.socket, int]:
        """A connecting socket, and an error number that is known at once, else 0."""
        connecting = socket.socket(_family(to), socket.SOCK_STREAM)
        connecting.setblocking(False)
        code = connecting.connect_ex((to.address, to.port))
        return connecting, 0 if code == errno.EINPROGRESS else code

    def connected(self, connecting: socket.socket) -> int | None:
        """None while it connects; then 0, or why it failed as an error number."""
        ready = select.poll()
        ready.register(connecting.fileno(), select.POLLOUT)
        return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready.poll(0) else None


def _family(endpoint: Endpoint) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
