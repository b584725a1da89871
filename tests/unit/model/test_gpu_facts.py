"""GPUs by their names in NVML and in torch's file names."""

from __future__ import annotations

import pytest

from orchestrator.model.gpu_facts import GPUS, L40S, SHARED_MEMORY, facts_of, short_name


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA L40S", "L40S"), ("NVIDIA_L40S", "L40S"), ("NVIDIA L40", "L40"), ("NVIDIA L4", "L4"),
        ("NVIDIA L20", "L20"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("NVIDIA GeForce RTX 4090 D", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"), ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA_H100_PCIe", "H100"),
        ("NVIDIA H200", "H200"), ("NVIDIA H2000", None), ("NVIDIA B200", None), ("", None),
    ],
)  # fmt: skip
def test_a_model_is_known_by_its_whole_name(name: str, known: str | None) -> None:
    found = facts_of(name)
    assert (found.name if found else None) == known
    assert short_name(name) == (known or name.removeprefix("NVIDIA "))


def test_every_model_has_its_shared_memory() -> None:
    assert L40S.name == "L40S" and {one.sm for one in GPUS} <= set(SHARED_MEMORY)
