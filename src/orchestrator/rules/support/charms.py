"""What the settings cost that take a transport from NCCL."""

from __future__ import annotations

from orchestrator.topology.speed import Traffic, price

_COSTS = {
    "NCCL_P2P_DISABLE": ("GPUs behind one switch communicate through host memory; ", Traffic.CARD_ON_ROOT_PORT),
    "NCCL_IB_DISABLE": ("everything between nodes crosses TCP; ", Traffic.TCP),
    "NCCL_NET_GDR_DISABLE": ("all data between card and GPU passes through host memory; ", Traffic.HOST_STAGED),
}
_SHM = "the halves of a node communicate only over the RDMA cards; without a card for each half the start fails"


def cost(name: str, value: str) -> str:
    """What a setting costs, in words; '' for one that takes nothing away."""
    if value.strip() in ("", "0"):
        return ""
    if name == "NCCL_SHM_DISABLE":
        return _SHM
    known = _COSTS.get(name)
    return known[0] + price(known[1]) if known else ""
