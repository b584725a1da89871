"""Faults of a lab's nodes: of their hardware, their network and their processes."""
