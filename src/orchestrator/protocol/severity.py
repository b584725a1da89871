"""How much a finding matters: of a machine, of a checkpoint, of a file of tuned configurations."""

from __future__ import annotations

from enum import Enum


class Severity(str, Enum):
    """stop: can't start, or wrong results. slow: starts and loses speed. note: worth knowing.
    unknown: could not be read, and why; never counted as fine."""

    STOP = "stop"
    SLOW = "slow"
    NOTE = "note"
    UNKNOWN = "unknown"
