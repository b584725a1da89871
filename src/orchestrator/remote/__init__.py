"""SSH sessions, fan-out over nodes, and the node application's delivery. paramiko lives here only."""
