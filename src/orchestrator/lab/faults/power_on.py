"""The end of `power-off`, for who looks for it among the faults."""

from __future__ import annotations

from orchestrator.lab.faults.registry import Fault

FAULT = Fault(
    name="power-on",
    summary="the power comes back: the node boots, its hardware as it was",
    shows="it answers again",
    levels=(1, 2),
    lasting=False,
    cures="power-off",
)
