"""What the drivers of cards, and what sets up NVSwitches, say of themselves: a fault that `why` names too."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.doctor.rules.support.registry import Rule, slow, stop
from orchestrator.engines.causes import COMMON
from orchestrator.engines.host_causes import HOST
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.protocol.staging import CausePattern

_CARD_FAILED, _FABRIC = (
    next(cause for cause in causes if cause.id == name)
    for name, causes in (("RDMA-CARD-FAILED", HOST), ("FABRIC-MANAGER", COMMON))
)
"""Which `why` names in the same words."""


def _driver_lines(node: Node, cause: CausePattern) -> Iterator[tuple[str, str]]:
    """(PCI address, line) of the drivers' messages that show a cause; the address is '' where there is none."""
    for line in node.driver_lines:
        if match := re.search(cause.pattern, line):
            yield next((own for own in match.groupdict().values() if own), ""), line.strip()[:200]


@Rule(
    id="RDMA-CARD-FAILED",
    title="an RDMA card did not start, or its firmware does not answer the driver",
    explain=(
        "The kernel log goes back to the last boot. A card whose health was compromised may have recovered; it is"
        " likely to fail again, and then every gang that uses it hangs or ends."
    ),
    reads=("/dev/kmsg",),
    source="Linux drivers/net/ethernet/mellanox/mlx5/core: main.c, health.c",
    weight=9,
).of_node
def rdma_card_failed(node: Node) -> Iterator[Finding]:
    """One finding for each card."""
    for address, lines in collected(_driver_lines(node, _CARD_FAILED)).items():
        yield slow(
            f"{_CARD_FAILED.text} ({address})",
            *(f"{node.log_of_drivers}: {line}" for line in lines[-4:]),
            effect="a gang that uses the card hangs or ends",
            fix=_CARD_FAILED.fix,
            devices=(address,),
        )


@Rule(
    id="FABRIC-MANAGER",
    title="nvidia-fabricmanager does not fit the driver",
    explain=(
        "On a machine with NVSwitches CUDA starts once nvidia-fabricmanager has set up the links. It must have the"
        " driver's version. Its own log says so; a node's kernel log does not."
    ),
    reads=("a pasted log of nvidia-fabricmanager",),
    source="NVIDIA Fabric Manager for NVSwitch Systems User Guide",
    weight=8,
).of_node
def fabric_manager(node: Node) -> Iterator[Finding]:
    """One finding."""
    lines = [line for _, line in _driver_lines(node, _FABRIC)]
    if lines:
        yield stop(
            _FABRIC.text,
            *(f"{node.log_of_drivers}: {line}" for line in lines[-4:]),
            effect="no CUDA process starts on a machine with NVSwitches (error 802)",
            fix=_FABRIC.fix,
        )
