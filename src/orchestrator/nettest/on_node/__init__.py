"""What runs on a node: the standard library only."""
