"""The network test: what is measured, what is expected, and what the figures mean."""
