"""Benchmarks of an engine: one run's figures, and what they are worth."""
