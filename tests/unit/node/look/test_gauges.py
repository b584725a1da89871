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
