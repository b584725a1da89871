"""The engine as seen by its node's agent: processes, deaths, log, memory, health."""
