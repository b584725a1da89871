"""Tuned kernel configs on a node."""
