"""Nodes inspected: snapshots, topology, findings, connectivity."""
