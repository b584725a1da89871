"""The guard: watches gangs and restarts them."""
