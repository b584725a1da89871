"""Faults given to running nodes, and taken away."""
