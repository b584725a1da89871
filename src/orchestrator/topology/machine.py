"""A node as it is and as its inventory means it, for rules and choices alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from orchestrator.model.inventory import NodeSpec
from orchestrator.model.topology import Gpu, RdmaPort, Topology
from orchestrator.protocol.planned import takes
from orchestrator.topology.gpus import usable_gpus


@dataclass(frozen=True)
class Machine:
    """What only facts and inventory together tell of a node: here a variable of the inventory that says what is meant
    by its hardware has its one place."""

    spec: NodeSpec
    topology: Topology

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the gang may use here, by l40s_gpus and NVML."""
        return usable_gpus(self.topology.gpus, self.spec.gpus, self.spec.gpu_names)

    @property
    def answering(self) -> tuple[Gpu, ...]:
        """Those of them that NVML shows."""
        return tuple(gpu for gpu in self.gpus if gpu.index >= 0)

    @property
    def named_ports(self) -> tuple[RdmaPort, ...]:
        """The RDMA ports that l40s_ib_hca names."""
        pin = self.spec.overrides.ib_hca
        return tuple(port for port in self.topology.rdma if pin and takes(pin, port.device, port.port))
