"""Tuned kernel configs: status, packs, transport."""
