"""Whose an environment variable is, by how its name begins."""

OF_THE_PLAN = ("NCCL_", "GLOO_", "SGLANG_", "SGL_", "VLLM_", "TORCH_", "PYTORCH_", "CUDA_", "FLASHINFER_", "TRITON_")
"""Of engines and their libraries: only the plan sets these, whatever a shell or session has."""
