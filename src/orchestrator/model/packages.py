"""Python packages: those whose versions decide whether ranks understand each other, by what they are; and locks."""

from __future__ import annotations

import re
from collections.abc import Iterable

ENGINE = ("sglang",)
TORCH = ("torch",)
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
KERNELS = ("sglang-kernel", "sgl-kernel")
TRITON = ("triton",)
ALL = (*ENGINE, *TORCH, *NCCL, *KERNELS, *TRITON)
"""What a look reads of a stack's environment."""

PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?==(?P<version>[^\s;#\\]+)(?P<marker>\s*;[^#\\]*)?")


def pins(lock: str) -> Iterable[re.Match[str]]:
    """The lines `name==version` of a lock."""
    return (pin for line in lock.splitlines() if (pin := PIN.match(line.strip())))


def plain(name: str) -> str:
    """As PyPA's name normalisation has it (packaging.python.org, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()
