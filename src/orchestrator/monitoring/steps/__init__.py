"""Monitoring: the exporter, what it asks, and the files that a monitoring system reads."""
