"""Snapshot to topology, distances, network roles, drawing. Pure."""
