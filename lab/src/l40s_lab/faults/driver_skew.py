"""A node with a different NVIDIA driver from the others."""

from __future__ import annotations

import re
from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine
from orchestrator.model.errors import InputError

FAULT = Fault(
    name="driver-skew",
    argument="[VERSION]",
    summary="the node has the NVIDIA driver VERSION (default: 570.133.20), which is older than its peers'",
    shows="NVML (driver, NVML and CUDA version), /sys/module/nvidia*/version, /proc/driver/nvidia/version",
)
_OLDER = "570.133.20"
_CUDA = 12080
"""The CUDA version of the 570 drivers, in the form of cuDriverGetVersion."""


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Driver, NVML and CUDA change together."""
    words.at_most(asked, 1)
    version = asked[0] if asked else _OLDER
    if not re.fullmatch(r"\d{3}\.\d{1,3}(\.\d{1,3})?", version):
        raise InputError(f"found {version!r}, wanted a driver's version", where="ARG", fix=_OLDER)
    machine = node.machine
    return replace(node, machine=replace(machine, system=replace(machine.system, driver=version, cuda=_CUDA)))
