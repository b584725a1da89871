"""Nodes inspected: snapshots, paths, findings."""
