"""Frozen data types that every layer shares. Nothing here reads a file, a socket or the clock."""
