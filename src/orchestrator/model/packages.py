"""Python packages whose versions decide whether ranks understand each other, by what they are."""

ENGINE = ("sglang",)
TORCH = ("torch",)
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
KERNELS = ("sglang-kernel", "sgl-kernel")
TRITON = ("triton",)
ALL = (*ENGINE, *TORCH, *NCCL, *KERNELS, *TRITON)
"""What a look reads of a stack's environment."""
