"""SSH sessions, fan-out over nodes, and the node application's delivery. paramiko lives here only.

paramiko imports invoke, a fifth of the start-up time of every command, for `Match exec` of an SSH configuration
alone. Here paramiko is imported without it; `ssh_config` brings it in when a configuration has such a line.
"""

from __future__ import annotations

import sys

if "paramiko" not in sys.modules and "invoke" not in sys.modules:
    # None is how Python spells "not to be had"
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
