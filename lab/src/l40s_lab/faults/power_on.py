"""The end of `power-off`, for operators who look for it among the faults."""

from __future__ import annotations

from l40s_lab.faults.registry import Fault

FAULT = Fault(
    name="power-on",
    summary="power returns: the node boots, with the hardware and the disk that it had",
    shows="it answers again",
    levels=(1, 2),
    lasting=False,
    cures="power-off",
)
