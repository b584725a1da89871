"""A directory carried from node to node by rsync."""
