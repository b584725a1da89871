"""Checkpoint directories on a node: read, checked, re-blocked."""
