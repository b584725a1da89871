"""Sensors and counters: a port's counts, a GPU's values, and the message if it gives none."""

# ruff: noqa: N802 - NVML's own names

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.machine_files import reference_machine

from orchestrator.node.look import gauges


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    yield
    gauges._nvml.close()


class NVMLError(Exception):
    pass


class OldNvml(ModuleType):
    """One GPU that is lost and one whose driver knows little."""

    NVMLError = NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 0:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 71

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 287_500

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=98, memory=40)


def test_a_gpu_tells_what_it_can_and_a_lost_one_why_not() -> None:
    lost, other = gauges.sensors(OldNvml("old"))["gpus"]
    assert lost == {"index": 0, "error": "NVMLError: GPU is lost"}
    assert (other["temperature_c"], other["power_mw"], other["utilization_percent"]) == (71, 287_500, 98)
    assert other["sm_clock_mhz"] is None and other["ecc_corrected"] is None


def test_ports_are_read_below_the_root_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = reference_machine("node0", 0, right=True)
    for path, text in machine.snapshot().files.items():
        if "/infiniband/" in path:
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if path.endswith("/ports/1/state"):
            for name, value in (("counters/port_xmit_data", 1 << 48), ("hw_counters/out_of_sequence", 7)):
                counter = (tmp_path / path.lstrip("/")).parent / name
                counter.parent.mkdir(parents=True)
                counter.write_text(f"{value}\n")
    links = {path: to for path, to in machine.snapshot().links.items() if path.startswith("/sys/class/infiniband/")}
    for path, target in links.items():
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(target)
    said = gauges.read(str(tmp_path), 20.0)
    assert {(one.device, one.port) for one in said.ports} == {(Path(path).name, 1) for path in links}
    first = said.ports[0]
    assert first.state == "4: ACTIVE" and "Gb/sec" in first.rate
    assert first.counters == {"port_xmit_data": 1 << 48, "out_of_sequence": 7}
    assert said.gpus or said.error  # this machine may have no driver; then there is an error
