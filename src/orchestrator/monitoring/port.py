"""Where the exporter listens by default."""

from __future__ import annotations

DEFAULT_PORT = 9940
"""TCP; not on Prometheus' list of ports that other exporters are known by."""
