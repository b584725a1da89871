"""Faults of a lab's nodes: one fault per file, found by scanning this package."""
