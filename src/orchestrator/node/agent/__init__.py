"""The agent of one node's part of a gang: one process that arms, starts, watches and ends it."""
