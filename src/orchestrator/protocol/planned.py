"""How a model is divided over the GPUs of a gang."""

from __future__ import annotations

from enum import Enum

from orchestrator.protocol.message import Message, schema


@schema(frozen=True, slots=True, kw_only=True)
class Layout(Message):
    """Degrees of parallelism and which node holds which ranks.

    attention_data_parallel: groups into which the tensor parallel ranks are divided for attention, each with its own
        requests and KV cache; experts and dense layers stay cut over all ranks
    """

    tensor_parallel: int
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    nnodes: int
    gpus_per_node: int

    @property
    def inside_nodes(self) -> bool:
        """Each tensor parallel group has a node to itself: between nodes only pipeline stages hand over."""
        return self.tensor_parallel <= self.gpus_per_node

    @property
    def key(self) -> str:
        """'TP8 PP4', as records have it."""
        degrees = {"PP": self.pipeline_parallel, "EP": self.expert_parallel, "DP": self.attention_data_parallel}
        more = (f"{letters}{count}" for letters, count in degrees.items() if count > 1)
        return " ".join((f"TP{self.tensor_parallel}", *more))

    @property
    def shares(self) -> int:
        """Batches that share the requests which run at once: each pipeline stage has one, in each attention group."""
        return self.pipeline_parallel * self.attention_data_parallel

    def __str__(self) -> str:
        """'TP32', 'PP4 x TP8', 'TP32 with EP2'."""
        name = f"TP{self.tensor_parallel}"
        if self.pipeline_parallel > 1:
            name = f"PP{self.pipeline_parallel} x {name}"
        degrees = {"EP": self.expert_parallel, "attention DP": self.attention_data_parallel}
        more = [f"{letters}{count}" for letters, count in degrees.items() if count > 1]
        return f"{name} with {' and '.join(more)}" if more else name


class Transport(Enum):
    """What NCCL sends over between the nodes of a gang; none where it sends nothing there."""

    RDMA = "rdma"
    TCP = "tcp"
    NONE = "none"


@schema(frozen=True, slots=True, kw_only=True)
class NodeNetwork(Message):
    """What really applies, the operator's own variables included.

    interface:  that Gloo takes, and `sockets` those that NCCL takes for TCP, by whole names; '' and (): not known
    address:    by which the other nodes know this one
    hca:        which RDMA ports NCCL takes, as NCCL_IB_HCA says it (`takes`, `names_ports`); '' for all of them
    gid_index:  None where NCCL finds one for each port, among the addresses in gid_range where that is not ''
    traffic_class, service_level: None for NCCL's own
    notice_s:   seconds after which NCCL goes on over the other port of a card; 0 where it does not (no port failover)
    ras:        host:port where NCCL's RAS answers, '' for nowhere
    logged:     NCCL tells in the engine's log what it takes
    """

    transport: Transport = Transport.NONE
    interface: str = ""
    sockets: tuple[str, ...] = ()
    address: str = ""
    hca: str = ""
    gid_index: int | None = None
    gid_range: str = ""
    traffic_class: int | None = None
    service_level: int | None = None
    notice_s: float = 0.0
    ras: str = ""
    logged: bool = False

    @property
    def rdma(self) -> bool:
        """Whether anything travels over RDMA."""
        return self.transport is Transport.RDMA

    @property
    def ports(self) -> tuple[str, ...]:
        """RDMA ports that are named whole."""
        return names_ports(self.hca)


def takes(pin: str, device: str, port: int) -> bool:
    """Whether NCCL_IB_HCA so written takes a port: `^` means all others, `=` the whole name, else its beginning; `:N`
    one port. An empty one takes all (NCCL src/transport/net_ib, ncclIbInit: matchIfList; parseStringList)."""
    excluded, exact = pin.startswith("^"), pin.removeprefix("^").startswith("=")
    words = [word.split(":") for word in pin.lstrip("^=").split(",") if word]
    fits = any(
        (device == name if exact else device.startswith(name)) and (not rest or rest[0] in ("", str(port)))
        for name, *rest in words
    )
    return not words or fits != excluded


def names_ports(pin: str) -> tuple[str, ...]:
    """The ports that it names whole (`=mlx5_0:1,mlx5_1:1`), in its words; () where it is written otherwise."""
    names = pin[1:].split(",") if pin.startswith("=") else ()
    return tuple(name for name in names if name and "/" not in name)


OF_THE_PLAN = ("NCCL_", "GLOO_", "SGLANG_", "SGL_", "VLLM_", "TORCH_", "PYTORCH_", "CUDA_", "FLASHINFER_", "TRITON_")
"""Of engines and their libraries: only the plan sets these, whatever a shell or session has."""
FAILOVER_HANGS = (
    "NCCL's code for it may stop inference for ever after hours of load (NVIDIA/nccl#2334, open; seen with 2.28.9,"
    " 2.30.4 and 2.30.7)"
)
"""Of port failover: what is known against it."""
