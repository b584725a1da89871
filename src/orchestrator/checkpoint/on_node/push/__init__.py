"""A directory carried from node to node."""
