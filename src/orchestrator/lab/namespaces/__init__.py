"""Level 1: every node its own network, mount, PID, UTS and IPC namespace, all of them below one process."""
