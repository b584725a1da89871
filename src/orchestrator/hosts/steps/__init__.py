"""Hosts made ready: packages, stacks, users."""
