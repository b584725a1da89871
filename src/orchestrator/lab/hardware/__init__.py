"""A machine's description, and what Linux and NVML show of such a machine."""
