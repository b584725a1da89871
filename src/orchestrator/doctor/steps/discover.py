"""`discover`: nodes as they are, from themselves or from files, under pseudonyms if asked; what a drawing of one marks.

Changes nothing. What is wrong is what `doctor` says of the same facts, without trying the paths between nodes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.doctor.rules.ports import rdma_port_down, rdma_port_unconfigured
from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import COSTLY, all_rules
from orchestrator.doctor.steps.doctor import Examination, diagnose, stacks_of
from orchestrator.doctor.steps.look import look
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.model.errors import VerificationDiffers
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import Inventory, NodeSpec, Overrides
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.network import port_fault
from orchestrator.topology.redaction import redact


def discover_inventory(
    inventory: Inventory, only: Sequence[str] = (), options: BuildOptions | None = None, *, redact: bool = False
) -> Examination:
    """Inspect every node of an inventory (or those named) over connections of its own, without the paths between them.

    redact: everything that was seen is under pseudonyms, nodes' names too; failures keep theirs
    """
    nodes = [node for node in inventory.nodes if not only or node.name in only]
    with Fleet(nodes) as fleet:
        looked = look(fleet, nodes)
    seen = redacted(looked.values) if redact else looked.values
    specs = {seen[node.name].node: _renamed(node, seen[node.name].node) for node in nodes if node.name in seen}
    snapshots = _by_name(seen)
    topologies = {name: build(snapshot, options) for name, snapshot in snapshots.items()}
    cluster = Cluster(topologies=topologies, snapshots=snapshots, specs=specs, stacks=stacks_of(snapshots))
    return diagnose(cluster, looked.failures)


def discover_given(seen: Given, options: BuildOptions | None = None, *, redact: bool = False) -> Examination:
    """The same from what --from named; all of it is taken for one gang."""
    if redact:
        hidden = redacted(seen.snapshots)
        topologies = {hidden[name].node: replace(one, node=hidden[name].node) for name, one in seen.topologies.items()}
        seen = Given(_by_name(hidden), topologies)
    return examine_given(seen, options)


def _by_name(snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    return {snapshot.node: snapshot for snapshot in snapshots.values()}


def _renamed(spec: NodeSpec, name: str) -> NodeSpec:
    """Under a pseudonym the inventory's addresses and names fit nothing any more."""
    return spec if spec.name == name else replace(spec, name=name, address=None, overrides=Overrides())


KEY_BYTES = 32


def redacted(snapshots: Mapping[str, Snapshot], tries: int = 3) -> dict[str, Snapshot]:
    """The same machines under pseudonyms, by their original names. The key is forgotten.

    Raises VerificationDiffers where something that tells who they are would stay: nothing may be shown then.
    """
    try:
        return dict(zip(snapshots, redact(snapshots.values(), secrets.token_bytes(KEY_BYTES)), strict=True))
    except ValueError as left:
        if tries > 1:  # a pseudonym may happen to be another one's original
            return redacted(snapshots, tries - 1)
        raise VerificationDiffers(
            f"data that identifies a machine would remain: {left}",
            where="--redact",
            fix="nothing was written. Inspect that part without --redact",
        ) from None


def devices_to_mark(finding: Finding) -> Sequence[str]:
    """The devices that a drawing marks; none for a note or an unknown. A finding that names places on the PCI bus is
    marked there, not on the ports that it names with them."""
    if finding.severity not in COSTLY:
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
