"""Connections between nodes: the leader link, and test connections."""
