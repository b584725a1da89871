"""Inject faults into running nodes, and remove them."""
