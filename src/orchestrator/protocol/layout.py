"""How a model is divided over the GPUs of a gang."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.protocol.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def __str__(self) -> str:
        """'TP32', 'PP4 x TP8', 'TP32 with EP2'."""
        name = f"PP{self.pipeline_parallel} x " * (self.pipeline_parallel > 1) + f"TP{self.tensor_parallel}"
        more = [f"EP{self.expert_parallel}"] * (self.expert_parallel > 1)
        more += [f"attention DP{self.attention_data_parallel}"] * (self.attention_data_parallel > 1)
        return f"{name} with {' and '.join(more)}" if more else name
