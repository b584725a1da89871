"""Reads the user's files into values: inventory, model profiles, stacks; and locates our own data files."""
