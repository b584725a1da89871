"""How a node is reached: over SSH, or as a process of this machine."""

from __future__ import annotations

from orchestrator.model.inventory import NodeSpec
from orchestrator.remote.session import Connection


def connect(spec: NodeSpec, deadline_s: float) -> Connection:
    """Open a session to a node.

    Raises Unreachable (refused, silent, unknown name, key refused), HostKeyError (unknown or changed host key),
    InputError (a key file or ssh option that cannot be used).
    """
    if spec.reach.connection == "local":
        from orchestrator.remote.local import LocalSession

        return LocalSession(spec)
    from orchestrator.remote.ssh_session import open_session

    return open_session(spec, deadline_s=deadline_s)
