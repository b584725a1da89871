"""Tuned kernel configs: which an engine looks for, whether one can be used, how they are packed."""
