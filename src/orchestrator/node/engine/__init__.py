"""An engine as its node's agent sees it: processes, deaths, log, memory, health."""
