"""A machine's description, and how Linux and NVML show such a machine."""
