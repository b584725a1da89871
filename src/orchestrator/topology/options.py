"""What a caller can add for `build` that a snapshot does not contain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceleratorClass:
    """PCI functions that count as GPUs: base class and subclass (16 bits, 0x0302) of one vendor (None for any)."""

    class_code: int
    vendor: int | None = None

    def matches(self, class_code: int, vendor: int) -> bool:
        """class_code: the function's whole 24 bits."""
        return class_code >> 8 == self.class_code and self.vendor in (None, vendor)


NVIDIA = 0x10DE
NVIDIA_GPUS = (AcceleratorClass(0x0302, NVIDIA), AcceleratorClass(0x0300, NVIDIA))
"""3D controllers (data centre cards) and VGA controllers (workstation cards)."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """accelerators: which PCI functions are GPUs; a recorded machine may have other ones than NVIDIA's."""

    accelerators: tuple[AcceleratorClass, ...] = NVIDIA_GPUS
