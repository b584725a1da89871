"""Notices an sshd that no longer answers: on a machine that hangs, or behind a jump host, where TCP_USER_TIMEOUT only
watches the path to the jump host."""

from __future__ import annotations

import threading
from collections.abc import Callable

import paramiko

INTERVAL_S = 3.0
PATIENCE_S = 10.0
"""No answer to one heartbeat for this long: the connection is lost."""


class Heartbeat:
    """Asks the far sshd for an answer again and again. paramiko's own set_keepalive never looks for one."""

    def __init__(
        self,
        transport: paramiko.Transport,
        lost: Callable[[], object],
        *,
        interval_s: float = INTERVAL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._transport = transport
        self._lost = lost
        self._interval = interval_s
        self._patience = patience_s
        self._stopped = threading.Event()
        threading.Thread(target=self._beat, name="ssh heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop sending; a beat in flight ends with its transport."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval) and self._transport.is_active():
            limit = threading.Timer(self._patience, self._lost)
            limit.daemon = True
            limit.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return
            finally:
                limit.cancel()
