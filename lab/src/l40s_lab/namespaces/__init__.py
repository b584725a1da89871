"""Level 1: each node has its own network, mount, PID, UTS and IPC namespaces, all of them below one process."""
