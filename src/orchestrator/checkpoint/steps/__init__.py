"""Checkpoints re-blocked, pushed and verified."""
