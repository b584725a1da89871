"""Which device of a node a finding is drawn on: the one judge of what a drawing marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.doctor.rules.ports import rdma_port_down, rdma_port_unconfigured
from orchestrator.doctor.rules.support.registry import all_rules
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Topology
from orchestrator.topology.network import port_fault

MARKED = (Severity.STOP, Severity.SLOW)


def devices_to_mark(finding: Finding) -> Sequence[str]:
    """The devices that a drawing marks; none for a note or an unknown. A finding that names places on the PCI bus is
    marked there, not on the ports that it names with them."""
    if finding.severity not in MARKED:
        return ()
    places = [device for device in finding.devices if ":" in device]
    return places or finding.devices


def marks_of(topology: Topology, findings: Iterable[Finding]) -> dict[str, str]:
    """{device of a node: what is wrong with it}, with the finding's id: of a port its own judgement, else the rule's
    title."""
    titles = {rule.id: rule.title for rule in all_rules()}
    faults = {port: fault.value for port in topology.rdma if (fault := port_fault(port, topology))}
    ports = {name: words for port, words in faults.items() for name in (port.device, port.netdev) if name}
    marks: dict[str, list[str]] = {}
    for finding in findings:
        for device in devices_to_mark(finding) if finding.node == topology.node else ():
            said = ports.get(device) if finding.id in _OF_PORTS else None
            words = f"{said or titles.get(finding.id, finding.title)} ({finding.id})"
            if words not in marks.setdefault(device, []):
                marks[device].append(words)
    return {device: "; ".join(words) for device, words in marks.items()}


_OF_PORTS = (rdma_port_down.id, rdma_port_unconfigured.id)
