"""Machines to render: the wirings that ship, realised as one node of a lab."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import no_inventory_was_read, pytest_collection_modifyitems

from l40s_lab.hardware import wiring
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.hardware.realise import realise

__all__ = ["no_inventory_was_read", "pytest_collection_modifyitems"]


@pytest.fixture
def node() -> Callable[..., NodeMachine]:
    def make(name: str = "right", index: int = 0) -> NodeMachine:
        machine = wiring.parse(wiring.load(name), name, index)
        return realise(machine, lab="lab", node=f"node{index}", index=index, address=f"10.9.8.{10 + index}")

    return make
