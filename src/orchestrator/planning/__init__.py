"""Layout, memory, network environment, plan, diff. Pure."""
