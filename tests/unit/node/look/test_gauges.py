"""A port's counters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.machine_files import reference_machine

from orchestrator.node.look import gauges


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    yield
    gauges._nvml.close()


def test_ports_are_read_below_the_root_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = reference_machine("node0", 0, right=True)
    for path in [path.rpartition("/")[0] for path in machine.files if path.endswith("/ports/1/state")]:
        machine.write(path, {"counters/port_xmit_data": f"{1 << 48}", "hw_counters/out_of_sequence": "7"})
    machine.put_below(tmp_path)
    said = gauges.read(str(tmp_path), 20.0)
    ours = {Path(path).name for path in machine.links if path.startswith("/sys/class/infiniband/")}
    assert {(one.device, one.port) for one in said.ports} == {(device, 1) for device in ours}
    first = said.ports[0]
    assert first.state == "4: ACTIVE" and "Gb/sec" in first.rate
    assert first.counters == {"port_xmit_data": 1 << 48, "out_of_sequence": 7}
    assert said.gpus or said.error  # this machine may have no driver; then there is an error
