"""Machines to render: the wirings that ship, realised as one node of a lab."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.lab.hardware import wiring
from orchestrator.lab.hardware.machine import NodeMachine
from orchestrator.lab.hardware.realise import realise


@pytest.fixture
def node() -> Callable[..., NodeMachine]:
    def make(name: str = "right", index: int = 0) -> NodeMachine:
        machine = wiring.parse(wiring.load(name), name, index)
        return realise(machine, lab="lab", node=f"node{index}", index=index, address=f"10.9.8.{10 + index}")

    return make
