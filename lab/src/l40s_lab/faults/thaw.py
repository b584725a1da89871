"""The end of `freeze`, for operators who look for it among the faults."""

from __future__ import annotations

from l40s_lab.faults.registry import Fault

FAULT = Fault(
    name="thaw",
    summary="the processes of a frozen node continue",
    shows="they respond again",
    levels=(1, 2),
    lasting=False,
    cures="freeze",
)
