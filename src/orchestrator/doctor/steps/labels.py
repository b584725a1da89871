"""The nodes' labels, read only for the page of `doctor --report`."""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.model.deadlines import LOOK_S
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.looks import LabelsAnswer, LabelsRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


def labels_of(inventory: Inventory, names: Collection[str]) -> PerNode[LabelsAnswer]:
    """Of these nodes, all at once; what a node does not tell is left out on the page."""

    def one(session: Session) -> LabelsAnswer:
        request = LabelsRequest(fs_root=session.spec.fs_root)
        return ask(session, "labels", request, LabelsAnswer, deadline_s=LOOK_S)

    with Fleet([node for node in inventory.nodes if node.name in names]) as fleet:
        return fleet.on_every(one, only=list(names))
